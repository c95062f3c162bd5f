"""A name that somebody else chose, as that of a file, becomes text that a line can hold."""

from __future__ import annotations


def one_line(text: str) -> str:
    """As it is, but for what would end a line, hide a part of it or be obeyed by a terminal: as Python writes that."""
    return "".join(letter if letter.isprintable() and letter != "\\" else _escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode()
