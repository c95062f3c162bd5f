"""A Report consists of sections of blocks, independent of how it is rendered.

A block is a paragraph, a description list, a table or a picture.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """A paragraph. caution: it limits what may be concluded, and is shown so that nobody misses it."""

    text: str
    caution: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptionList:
    """Names and values. large: the few that a reader looks for first."""

    rows: Mapping[str, str]
    large: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under a head. left: so many columns of words, and those of these numbers; the others hold numbers."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    words: Sequence[int] = ()

    def holds_words(self, at: int) -> bool:
        """Whether a column is for reading, not for comparing digits."""
        return at < self.left or at in self.words

    def parts(self, most: int) -> list[Table]:
        """Tables of the first column and so many of the others: what is wider runs off a sheet of paper."""
        places = [(0, *range(at, min(at + most, len(self.head)))) for at in range(1, len(self.head), most)]
        return [
            Table(
                head=[self.head[at] for at in part],
                rows=[[row[at] for at in part] for row in self.rows],
                left=sum(at < self.left for at in part),
            )
            for part in places
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A PNG, kept as `name`.png beside the page. alt: what it shows, for those who do not see it. caption: below it."""

    name: str
    png: bytes
    alt: str
    caption: str = ""


Block = Paragraph | DescriptionList | Table | Picture


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole report. made: a line about when and by what."""

    title: str
    sections: Sequence[Section]
    made: str

    def blocks(self) -> list[Block]:
        """All of them, in order."""
        return [block for section in self.sections for block in section.blocks]

    def pictures(self) -> list[Picture]:
        """In order."""
        return [block for block in self.blocks() if isinstance(block, Picture)]

    def cautions(self) -> list[str]:
        """What limits the report."""
        return [block.text for block in self.blocks() if isinstance(block, Paragraph) and block.caution]
