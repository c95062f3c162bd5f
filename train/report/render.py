"""This module renders a Report as HTML and as Markdown, with the templates in its folder.

Both are written from the same blocks. HTML made from the Markdown by the library `markdown` would be no simpler: that
library passes tags through, so a hostile name of a class or run would need another escape of our own.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from train.report.document import DPI, DescriptionList, Gallery, Paragraph, Picture, Report, Table

GENERATOR_TAG: Final = '<meta name="generator" content="train report">'  # marks our own pages
MAX_SMALL_PICTURE_PIXELS: Final = 510  # pixels wide: two such pictures fit side by side
MAX_TINY_PIXELS: Final = 64  # a side of a thumbnail that is shown enlarged, pixel by pixel
MAX_UNBROKEN_LETTERS: Final = 30
MAX_SHORT_LIST_ROWS: Final = 20  # a longer list gets two columns
SCREEN_DPI: Final = 96  # a browser's pixels per inch
# Characters that may start a link, a tag, code or emphasis anywhere in a line.
MARKDOWN_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~!&$])")
# Characters that start a list or underline a heading at the beginning of a line.
MARKDOWN_LEADING: Final = re.compile(r"^(\s*(?:\d+(?=[.)]\s))?)([-+=.)])")


def render_html(report: Report) -> str:
    """Render the complete page: it contains its pictures and needs no network."""
    return _render("report.html", report, printable)


def render_markdown(report: Report) -> str:
    """Render the complete text; its pictures are files in the same folder."""
    return _render("report.md", report, lambda text: Markup(escape_markdown(text)))


def _render(template: str, report: Report, clean: Callable[[str], str]) -> str:
    """clean: applied to every text that the template shows. What is no Markup then, jinja2 escapes for HTML."""

    def finalize(value: Any) -> Any:
        return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=PackageLoader("train.report"),
        autoescape=True,
        finalize=finalize,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    environment.tests |= {
        "paragraph": lambda block: isinstance(block, Paragraph),
        "description_list": lambda block: isinstance(block, DescriptionList),
        "table": lambda block: isinstance(block, Table),
        "picture": lambda block: isinstance(block, Picture),
        "gallery": lambda block: isinstance(block, Gallery),
    }
    environment.filters |= {
        "base64": lambda image: base64.b64encode(image).decode(),
        "breakable_path": breakable_path,
        "has_short_names": has_short_names,
        "size_on_screen": size_on_screen,
    }
    environment.globals |= {
        "generator_tag": Markup(GENERATOR_TAG),
        "MAX_SHORT_LIST_ROWS": MAX_SHORT_LIST_ROWS,
        "MAX_TINY_PIXELS": MAX_TINY_PIXELS,
        "MAX_SMALL_PICTURE_PIXELS": MAX_SMALL_PICTURE_PIXELS,
    }
    return environment.get_template(template).render(report=report)


def printable(text: str) -> str:
    """Replace each unprintable character by the replacement character."""
    encodable = text.encode("utf-8", "replace").decode()
    return "".join(character if character.isprintable() else "\ufffd" for character in encodable)


def breakable_path(path: str) -> Markup:
    """A path in HTML, which a browser may break after each slash."""
    return Markup("/<wbr>").join(printable(part) for part in path.split("/"))


def escape_markdown(text: str) -> str:
    """Escape text for Markdown."""
    escaped = MARKDOWN_SPECIAL.sub(r"\\\1", printable(text))
    escaped = MARKDOWN_LEADING.sub(r"\1\\\2", escaped)
    return re.sub(r"(https?|www)([:.])", "\\1\u200b\\2", escaped)


def has_short_names(table: Table) -> bool:
    """Whether the first column is never broken, such as `run-1`; longer names may break."""
    return all(len(row[0]) <= MAX_UNBROKEN_LETTERS for row in table.rows)


def size_on_screen(png: bytes) -> tuple[int, int]:
    """Width and height of a picture in a browser's pixels."""
    width, height = png_size(png)
    return width * SCREEN_DPI // DPI, height * SCREEN_DPI // DPI


def png_size(png: bytes) -> tuple[int, int]:
    """(width, height) in pixels, from the PNG's own header."""
    width, height = struct.unpack(">II", png[16:24])
    return width, height
