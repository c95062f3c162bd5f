"""The code's own tables become docs/reference.md and the last part of docs/evidence/detection.md.

The meanings of the keys also become the comments of configs/quickstart.yaml.

python docs/write_reference.py
"""

from __future__ import annotations

import re
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from entrypoint import ExitCode
from train.config import environment, load, schema
from train.config.load import describe_type, format_value

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "reference.md"
PAGES: Final = (PAGE, ROOT / "docs" / "evidence" / "detection.md")
QUICKSTART: Final = ROOT / "configs" / "quickstart.yaml"
BEGIN, END = "<!-- begin of {}: written by docs/write_reference.py -->", "<!-- end of {} -->"
# What no table of the code says of a variable: what it is for. A test compares the names with the code.
MEANINGS: Final = tomllib.loads((ROOT / "docs" / "variables.toml").read_text())
# The error messages' words for a type and a range, and their short form in a table.
SHORT: Final = {
    r"a whole number": "integer",
    r"a number": "number",
    r"a list of whole numbers; from (\d+) to (\d+): .*": r"[height, width], \1 to \2",
    r"a mapping": "mapping",
    r"^one of ": "",
    r"a list of whole numbers or null; ": "null or ",
    r"a list of texts; ": "",
    r"; from (\d+) to (\d+)$": r", \1 to \2",
    r"; more than 0$": ", > 0",
    r"; more than 0, up to (\d+)$": r", > 0, up to \1",
    r"; (\d+) or more$": r", ≥ \1",
    r"; 0 or more, and less than 1$": ", ≥ 0 and < 1",
    r"text; a path that is not empty, without ~": "path without ~",
    r"text or null; a path that is not empty, without ~": "path without ~, or null",
    r"text(?: or null)?; (a.*)": r"\1",
}
Row = Sequence[str]
# Of the comments in configs/quickstart.yaml.
COMMENT_COLUMN, COMMENT_LENGTH = 26, 102


def table(head: Row, rows: Iterable[Row]) -> str:
    """A table of Markdown; no cell can end its row."""
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def commented(text: str) -> str:
    """A configuration with the meaning of each key beside it, instead of the comments that were there."""
    lines, written = load.parse_yaml(text, "the configuration").lines, list[str]()
    keys = {number - 1: key for path, number in lines.items() if (key := schema.KEYS.get(".".join(path)))}
    for number, line in enumerate(text.splitlines()):
        if number in keys:
            setting = f"{line.partition(' #')[0].rstrip():{COMMENT_COLUMN - 1}} "
            below = " " * COMMENT_COLUMN
            wrapped = textwrap.wrap(keys[number].meaning, COMMENT_LENGTH, break_on_hyphens=False)
            written += [f"{setting if part == 0 else below}# {words}" for part, words in enumerate(wrapped)]
        elif not re.match(r"\s+#", line):  # else the rest of a comment
            written.append(line)
    return "\n".join(written) + "\n"


def allowed(path: str) -> str:
    """Type and range in words; a rule that lists names says more than the type does."""
    key = schema.KEYS[path]
    expected = key.rule.expected
    names = [*key.rule.names, *filter(None, [key.rule.factory])]
    listed = ", ".join(names) if path in ("optim.name", "optim.schedule", "eval.metric") else ""
    if listed or expected.startswith(("one of", "none", "false")):
        text = listed or expected
    else:
        text = f"{describe_type(key.hint)}; {expected}" if expected else describe_type(key.hint)
    for words, short in SHORT.items():
        text = re.sub(words, short, text)
    return text


def config_rows() -> list[Row]:
    """A row for each key of the configuration."""
    return [
        [f"`{path}`", f"`{format_value(key.default)}`", allowed(path), key.meaning] for path, key in schema.KEYS.items()
    ]


def patterns() -> dict[str, list[str]]:
    """The variables that a training is not given, by what decides instead."""
    groups: dict[str, list[str]] = {}
    for name, why in environment.REMOVED_VARIABLES.items():
        groups.setdefault(why, []).append(name)
    return groups


def code_rows() -> list[Row]:
    """A row for each exit code. A test compares `requeue` with the job scripts."""
    return [[str(int(code)), f"`{code.name}`", code.meaning, "yes" if code.requeue else "no"] for code in ExitCode]


def variable_rows(entries: Mapping[str, str]) -> list[Row]:
    """A row for each variable; neighbours with the same meaning share one."""
    return [[_code(names), meaning] for meaning, names in groupby(entries, key=entries.__getitem__)]


def sections() -> dict[str, str]:
    """The text between each pair of the page's marks."""
    named = {title: table(("variable", "meaning"), variable_rows(entries)) for title, entries in MEANINGS.items()}
    removed = table(("not used", "why"), [[_code(names), why] for why, names in patterns().items()])
    return named | {
        "keys": table(("key", "default", "allowed", "meaning"), config_rows()),
        "removed": removed,
        "acting": _code((*environment.RECORDED_VARIABLES, *environment.PROXY_VARIABLES)) + ".",
        "codes": table(("code", "name", "meaning", "the job scripts requeue"), code_rows()),
    }


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def written(text: str) -> str:
    """A page with what the code says now between the marks that it has."""
    for name, inside in sections().items():
        begin, end = BEGIN.format(name), END.format(name)
        if begin not in text:
            continue
        before, _, after = re.split(f"{re.escape(begin)}|{re.escape(end)}", text)
        text = f"{before}{begin}\n{inside}\n{end}{after}"
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page.read_text()))
    QUICKSTART.write_text(commented(QUICKSTART.read_text()))
