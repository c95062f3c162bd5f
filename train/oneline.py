"""A name that somebody else chose, as that of a file, becomes text that a line can hold."""

from __future__ import annotations

from typing import Final

WIDEST: Final = 40  # letters of a name in a line


def one_line(text: str) -> str:
    """As it is, but for what would end a line, hide a part of it or be obeyed by a terminal: as Python writes that."""
    return "".join(letter if letter.isprintable() and letter != "\\" else _escaped(letter) for letter in text)


def shortened(name: str, widest: int = WIDEST) -> str:
    """One line of at most so many letters of it; what is escaped comes on top."""
    return one_line(name if len(name) <= widest else f"{name[: widest - 1]}…")


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode()
