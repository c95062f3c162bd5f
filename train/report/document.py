"""A report consists of sections of blocks; this module renders them as HTML and as Markdown, with its templates.

Both are written from the same blocks. HTML made from the Markdown by the library `markdown` would be no simpler: that
library passes tags through, so a hostile name of a class or run would need another escape of our own.
"""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from entrypoint import to_printable
from train.report.saved_evaluation import SavedGallery, jpeg_size

DPI: Final = 150  # pixels per inch of a picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """A paragraph. caution: it limits the conclusions, and is shown prominently. more: lines folded below the text."""

    text: str
    caution: bool = False
    more: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptionList:
    """Names and values. large: the few key figures, shown in large type."""

    rows: Mapping[str, str]
    large: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under a head.

    left: the number of leading text columns. words: the indices of further text columns.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    words: Sequence[int] = ()

    def holds_words(self, column: int) -> bool:
        """Whether a column holds text, not numbers."""
        return column < self.left or column in self.words

    def parts(self, max_columns: int) -> list[Table]:
        """Split into tables of the first column and at most so many others, which fit on paper."""
        column_groups = [
            (0, *range(column, min(column + max_columns, len(self.head))))
            for column in range(1, len(self.head), max_columns)
        ]
        return [
            Table(
                head=[self.head[column] for column in columns],
                rows=[[row[column] for column in columns] for row in self.rows],
                left=sum(column < self.left for column in columns),
            )
            for columns in column_groups
        ]


def fold_cautions(lines: Sequence[str], summary: str) -> list[Paragraph]:
    """A caution of these lines, folded below the summary if there are several."""
    if len(lines) < 2:
        return [Paragraph(text=line, caution=True) for line in lines]
    return [Paragraph(text=summary, caution=True, more=lines)]


def table_of_columns(
    columns: Sequence[tuple[str, Sequence[str]]], *, left: int = 1, words: Sequence[int] = ()
) -> Table:
    """A table of (head, cell of each row)."""
    head, cells = zip(*columns, strict=True)
    return Table(head=[*head], rows=[[*row] for row in zip(*cells, strict=True)], left=left, words=words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A PNG, written as `name`.png.

    alt: a description for screen readers. caption: the text below it.
    """

    name: str
    png: bytes
    alt: str
    caption: str = ""


Block = (
    Paragraph | DescriptionList | Table | Picture | SavedGallery
)  # Markdown shows the captions of a gallery as a table


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and its blocks."""

    title: str
    blocks: Sequence[Block]

    def pictures(self) -> list[Picture]:
        """All pictures, in order."""
        return [block for block in self.blocks if isinstance(block, Picture)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The complete report. byline: who made it, and when."""

    title: str
    sections: Sequence[Section]
    byline: str

    def blocks(self) -> list[Block]:
        """All blocks, in order."""
        return [block for section in self.sections for block in section.blocks]

    def pictures(self) -> list[Picture]:
        """All pictures, in order."""
        return [picture for section in self.sections for picture in section.pictures()]

    def cautions(self) -> list[str]:
        """The texts of all cautions."""
        return [block.text for block in self.blocks() if isinstance(block, Paragraph) and block.caution]


GENERATOR_TAG: Final = '<meta name="generator" content="train report">'  # marks our own pages
MAX_UNBROKEN_LETTERS: Final = 30  # of a name in a first column, such as `run-1`; longer ones may break
MAX_SHORT_LIST_ROWS: Final = 20  # a longer list gets two columns
BREAK_POINTS: Final = re.compile(r"(?<=/)(?=[^/\s]{2})|(?<=\.)(?=[^\W\d_])")  # not inside images/s and 75.00
UNBREAKABLE: Final = re.compile(rf"[^\s-]{{{MAX_UNBROKEN_LETTERS},}}|\d{{12,}}")  # or a number of many digits
SCREEN_DPI: Final = 96  # a browser's pixels per inch
# Characters that may start a link, a tag, code or emphasis anywhere in a line.
MARKDOWN_SPECIAL: Final = re.compile(r"([\\`*_{}\[\]<>#|~!&$])")
# Characters that start a list or underline a heading at the beginning of a line.
MARKDOWN_LEADING: Final = re.compile(r"^(\s*(?:\d+(?=[.)]\s))?)([-+=.)])")


def render_html(report: Report) -> str:
    """Render the complete page: it contains its pictures and needs no network."""
    return _render("report.html", to_printable, {"report": report})


def render_markdown(report: Report) -> str:
    """Render the complete text; its pictures are files in the same folder."""
    return render_text("report.md", {"report": report})


def render_text(template: str, values: Mapping[str, Any]) -> str:
    """Render a template of Markdown: every value is text in it, unless it is Markup."""
    return _render(template, lambda text: Markup(escape_markdown(text)), values)


def _render(template: str, clean: Callable[[str], str], values: Mapping[str, Any]) -> str:
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
        "gallery": lambda block: isinstance(block, SavedGallery),
        "longer_than": lambda text, letters: len(text) > letters,
        "unbreakable": lambda text: UNBREAKABLE.search(BREAK_POINTS.sub(" ", text)) is not None,
    }
    environment.filters |= {
        "base64": lambda image: base64.b64encode(image).decode(),
        "breakable": breakable,
        "gallery_table": gallery_table,
        "jpeg_size": jpeg_size,
        "size_on_screen": size_on_screen,
    }
    environment.globals |= {
        "generator_tag": Markup(GENERATOR_TAG),
        "MAX_UNBROKEN_LETTERS": MAX_UNBROKEN_LETTERS,
        "MAX_SHORT_LIST_ROWS": MAX_SHORT_LIST_ROWS,
    }
    return environment.get_template(template).render(values)


def breakable(text: str) -> Markup:
    """A text in HTML, which a browser may break where a part of a path or of a key ends, and not inside its words."""
    return Markup("<wbr>").join(BREAK_POINTS.split(to_printable(text)))


def escape_markdown(text: str) -> str:
    """Escape text for Markdown."""
    escaped = MARKDOWN_SPECIAL.sub(r"\\\1", to_printable(text))
    escaped = MARKDOWN_LEADING.sub(r"\1\\\2", escaped)
    return re.sub(r"(https?|www)([:.])", "\\1\u200b\\2", escaped)


def gallery_table(gallery: SavedGallery) -> Table:
    """The captions of a gallery's images, for Markdown, which cannot hold the images inside."""
    rows = [(image.name, *image.cells) for image in gallery.images]
    return Table(head=("image", *gallery.head), rows=rows, left=3)


def size_on_screen(png: bytes) -> tuple[int, int]:
    """Width and height of a PNG in a browser's pixels, from its own header."""
    width, height = struct.unpack(">II", png[16:24])
    return width * SCREEN_DPI // DPI, height * SCREEN_DPI // DPI
