"""A Report consists of sections of blocks, independent of how it is rendered.

A block is a paragraph, a description list, a table, a picture or a gallery.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

DPI: Final = 150  # pixels per inch of a picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """A paragraph. caution: it limits the conclusions, and is shown prominently."""

    text: str
    caution: bool = False


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A PNG, written as `name`.png.

    alt: a description for screen readers. caption: the text below it.
    """

    name: str
    png: bytes
    alt: str
    caption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thumbnail:
    """A small JPEG of width x height pixels. cells: its name, and the other values of the gallery's head.

    heat: a JPEG of the same size, with a heat map over it.
    """

    jpeg: bytes
    width: int
    height: int
    cells: Sequence[str]
    heat: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gallery:
    """Thumbnails with captions. Markdown, which cannot hold pictures inside, shows the captions as a table."""

    head: Sequence[str]
    thumbnails: Sequence[Thumbnail]

    def table(self) -> Table:
        """The captions alone."""
        return Table(head=self.head, rows=[each.cells for each in self.thumbnails], left=3)


Block = Paragraph | DescriptionList | Table | Picture | Gallery


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and its blocks."""

    title: str
    blocks: Sequence[Block]


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
        return [block for block in self.blocks() if isinstance(block, Picture)]

    def cautions(self) -> list[str]:
        """The texts of all cautions."""
        return [block.text for block in self.blocks() if isinstance(block, Paragraph) and block.caution]
