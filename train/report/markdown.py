"""A document becomes Markdown that stands beside its pictures, for a repository or an issue."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from train.report.document import Document, Facts, Picture, Section, Table, Words

# What would begin a link, a tag, code or emphasis somewhere in a line.
SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~!&$])")
# And at the beginning of one a list, or a line under a heading.
LEADING: Final = re.compile(r"^(\s*(?:\d+(?=[.)]\s))?)([-+=.)])")


def markdown(document: Document) -> str:
    """The whole text. Pictures are named as files beside it."""
    parts = [f"# {text(document.title)}", text(document.made), *map(_section, document.sections)]
    return "\n\n".join(parts) + "\n"


def text(raw: str) -> str:
    """Text as text: nothing of it is markup."""
    line = "".join(letter if letter.isprintable() else "\ufffd" for letter in raw.encode("utf-8", "replace").decode())
    marked = SPECIAL.sub(r"\\\1", line)
    begun = LEADING.sub(r"\1\\\2", marked)
    return re.sub(r"(https?|www)([:.])", "\\1\u200b\\2", begun)


def _section(section: Section) -> str:
    return "\n\n".join([f"## {text(section.title)}", *(SHOWN[type(block)](block) for block in section.blocks)])


def _words(words: Words) -> str:
    return f"> **Caution:** {text(words.text)}" if words.caution else text(words.text)


def _facts(facts: Facts) -> str:
    return _table(Table(head=["", ""], rows=[[name, value] for name, value in facts.rows.items()], left=2))


def _table(table: Table) -> str:
    rule = ["---" if table.holds_words(at) else "---:" for at in range(len(table.head))]
    lines = [_row([text(cell) for cell in table.head]), _row(rule)]
    return "\n".join([*lines, *(_row([text(cell) for cell in row]) for row in table.rows)])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _picture(picture: Picture) -> str:
    caption = f"\n\n{text(picture.caption)}" if picture.caption else ""
    return f"![{text(picture.alt)}]({picture.name}.png){caption}"


SHOWN: Final[dict[type, Callable[[Any], str]]] = {Words: _words, Facts: _facts, Table: _table, Picture: _picture}
