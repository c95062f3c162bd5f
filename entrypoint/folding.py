"""A message becomes lines that fit a terminal: folded at spaces and indented. Without a terminal it stays whole."""

from __future__ import annotations

import os
import re
import sys
from typing import Final, TextIO
from unicodedata import combining, east_asian_width

NARROWEST: Final = 40  # columns: below that, folding helps nobody
# `output         runs/small`: the value of a fact, or of a table's first column.
NAMED: Final = re.compile(r" {0,2}\S(?:.{0,15}\S)? {2,}(?=\S)")
# `  --config FILE   a YAML file`: of a help, whose first column may be long.
EXPLAINED: Final = re.compile(r" *\S(?:.*?\S)? {2,}(?=\S)")
LEAST: Final = 24  # columns for an explanation beside what it explains; else it stands below
UNKNOWN: Final = 120  # a help is folded without a terminal too: nobody greps for the whole of its paragraphs
# JSON, tables of Markdown and the repeated output of others are to be copied, or were laid out by somebody else.
LAID_OUT: Final = ("{", "[", "|")


def columns_of(descriptor: int) -> int | None:
    """How wide the terminal is that it leads to; None where it leads to none."""
    try:
        return os.get_terminal_size(descriptor).columns or None
    except OSError:
        return None


def folded(text: str, columns: int | None) -> str:
    """Each line that is longer than `columns`, as several; with None as it is: one for one fact, as grep wants it."""
    if columns is None or columns < NARROWEST:
        return text
    return "\n".join(part for line in text.split("\n") for part in _parts(line, columns))


def say(text: str, stream: TextIO) -> None:
    """Write a message and end its line."""
    try:
        columns = columns_of(stream.fileno())
    except (OSError, ValueError, AttributeError):  # a stream of a test's, or one that was closed
        columns = None
    stream.write(folded(text, columns) + "\n")
    stream.flush()


def say_help(text: str, stream: TextIO | None) -> None:
    """What argparse made of a help, with usage, examples and paragraphs folded too. stream: None is the output."""
    stream = stream or sys.stdout
    try:
        columns = columns_of(stream.fileno()) or UNKNOWN
    except (OSError, ValueError, AttributeError):
        columns = UNKNOWN
    stream.write(helped(text, columns))


def helped(text: str, columns: int) -> str:
    """Each line of a help that is longer than `columns`, as several: explanations stay in their column."""
    columns = max(columns, NARROWEST)
    return "\n".join(part for line in text.split("\n") for part in _explained(line, columns))


def relayed(data: bytes, columns: int, *, begun: bool) -> bytes:
    """The whole lines among a program's bytes, folded. begun: the first one goes on with a line that is shown already.

    What stands before a carriage return is a bar's, or what wipes it out.
    """
    *lines, rest = data.split(b"\n")
    shown = []
    for number, line in enumerate(lines):
        bar, drawn, message = line.rpartition(b"\r")
        known = drawn or not (begun and number == 0)
        text = message.decode(errors="surrogateescape")
        shown.append(bar + drawn + folded(text, columns).encode(errors="surrogateescape") if known else line)
    return b"\n".join([*shown, rest])


def _parts(line: str, columns: int) -> list[str]:
    """At spaces only: a path that is to be copied stays whole."""
    body = line.lstrip(" ")
    if _width(line) <= columns or body.startswith(LAID_OUT) or "\x1b" in line or "\t" in line:
        return [line]
    named = NAMED.match(line)
    start = named.end() if named else len(line) - len(body)
    if "  " in line[start:]:  # a table
        return [line]
    return _filled(line[:start], line[start:].split(" "), " " * (start if named else start + 2), columns)


def _explained(line: str, columns: int) -> list[str]:
    if _width(line) <= columns:
        return [line]
    left = len(line) - len(line.lstrip(" "))
    cell = EXPLAINED.match(line)
    if cell is None:
        return _filled(line[:left], line[left:].split(" "), " " * (left if left > LEAST else left + 2), columns)
    words, start = line[cell.end() :].split(" "), cell.end()
    if columns - start >= LEAST:
        return _filled(line[:start], words, " " * start, columns)
    below = " " * (left + 4)
    return [line[:start].rstrip(), *_filled(below, words, below, columns)]


def _filled(begin: str, words: list[str], indent: str, columns: int) -> list[str]:
    lines = [begin + words[0]]
    for word in words[1:]:
        if _width(lines[-1]) + 1 + _width(word) <= columns:
            lines[-1] += f" {word}"
        else:
            lines.append(indent + word)
    return lines


def _width(text: str) -> int:
    """In columns: a Chinese letter or an emoji takes two, an accent that is put onto a letter none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(one) else 1 + (east_asian_width(one) in "WF") for one in text)
