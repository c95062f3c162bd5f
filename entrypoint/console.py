"""The console functions fold messages to the terminal's width, and survive a closed console.

A message is folded at spaces and indented; without a terminal it stays on one line, as grep wants
it. A refused write is dropped: a closed console or a full disk never stops a training.
"""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import suppress
from typing import Any, Final, TextIO
from unicodedata import combining, east_asian_width

MIN_FOLD_COLUMNS: Final = 40  # columns: below that, folding helps nobody
# `output         runs/small`: the value of a fact, or of a table's first column.
NAMED_VALUE_PATTERN: Final = re.compile(r" {0,2}\S(?:.{0,15}\S)? {2,}(?=\S)")
# `  --config FILE   a YAML file`: of a help, whose first column may be long.
HELP_ENTRY_PATTERN: Final = re.compile(r" *\S(?:.*?\S)? {2,}(?=\S)")
MIN_EXPLANATION_COLUMNS: Final = 24  # columns for an explanation beside what it explains; else it stands below
HELP_COLUMNS_WITHOUT_TERMINAL: Final = (
    120  # a help is folded without a terminal too: nobody greps for the whole of its paragraphs
)
# JSON, tables of Markdown and the repeated output of others are to be copied, or were laid out by somebody else.
PREFORMATTED_PREFIXES: Final = ("{", "[", "|")


def terminal_columns(descriptor: int) -> int | None:
    """How wide the terminal is that it leads to; None where it leads to none."""
    try:
        return os.get_terminal_size(descriptor).columns or None
    except OSError:
        return None


def fold_text(text: str, columns: int | None) -> str:
    """Each line that is longer than `columns`, as several; with None as it is: one for one fact, as grep wants it."""
    if columns is None or columns < MIN_FOLD_COLUMNS:
        return text
    return "\n".join(part for line in text.split("\n") for part in _fold_line(line, columns))


def print_message(text: str, stream: TextIO) -> None:
    """Write a message and end its line."""
    try:
        columns = terminal_columns(stream.fileno())
    except (OSError, ValueError, AttributeError):  # a stream of a test's, or one that was closed
        columns = None
    stream.write(fold_text(text, columns) + "\n")
    stream.flush()


def print_help_text(text: str, stream: TextIO | None) -> None:
    """What argparse made of a help, with usage, examples and paragraphs folded too. stream: None is the output."""
    stream = stream or sys.stdout
    try:
        columns = terminal_columns(stream.fileno()) or HELP_COLUMNS_WITHOUT_TERMINAL
    except (OSError, ValueError, AttributeError):
        columns = HELP_COLUMNS_WITHOUT_TERMINAL
    stream.write(fold_help(text, columns))


def fold_help(text: str, columns: int) -> str:
    """Each line of a help that is longer than `columns`, as several: explanations stay in their column."""
    columns = max(columns, MIN_FOLD_COLUMNS)
    return "\n".join(part for line in text.split("\n") for part in _fold_help_line(line, columns))


def fold_complete_lines(data: bytes, columns: int, *, begun: bool) -> bytes:
    """The whole lines among a program's bytes, folded. begun: the first one goes on with a line that is shown already.

    What stands before a carriage return is a bar's, or what wipes it out.
    """
    *lines, rest = data.split(b"\n")
    shown = []
    for number, line in enumerate(lines):
        bar, drawn, message = line.rpartition(b"\r")
        known = drawn or not (begun and number == 0)
        text = message.decode(errors="surrogateescape")
        shown.append(bar + drawn + fold_text(text, columns).encode(errors="surrogateescape") if known else line)
    return b"\n".join([*shown, rest])


def _fold_line(line: str, columns: int) -> list[str]:
    """At spaces only: a path that is to be copied stays whole."""
    body = line.lstrip(" ")
    if _display_width(line) <= columns or body.startswith(PREFORMATTED_PREFIXES) or "\x1b" in line or "\t" in line:
        return [line]
    named = NAMED_VALUE_PATTERN.match(line)
    start = named.end() if named else len(line) - len(body)
    if "  " in line[start:]:  # a table
        return [line]
    return _fill_lines(line[:start], line[start:].split(" "), " " * (start if named else start + 2), columns)


def _fold_help_line(line: str, columns: int) -> list[str]:
    if _display_width(line) <= columns:
        return [line]
    left = len(line) - len(line.lstrip(" "))
    cell = HELP_ENTRY_PATTERN.match(line)
    if cell is None:
        return _fill_lines(
            line[:left], line[left:].split(" "), " " * (left if left > MIN_EXPLANATION_COLUMNS else left + 2), columns
        )
    words, start = line[cell.end() :].split(" "), cell.end()
    if columns - start >= MIN_EXPLANATION_COLUMNS:
        return _fill_lines(line[:start], words, " " * start, columns)
    below = " " * (left + 4)
    return [line[:start].rstrip(), *_fill_lines(below, words, below, columns)]


def _fill_lines(begin: str, words: list[str], indent: str, columns: int) -> list[str]:
    lines = [begin + words[0]]
    for word in words[1:]:
        if _display_width(lines[-1]) + 1 + _display_width(word) <= columns:
            lines[-1] += f" {word}"
        else:
            lines.append(indent + word)
    return lines


def _display_width(text: str) -> int:
    """In columns: a Chinese letter or an emoji takes two, an accent that is put onto a letter none."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(one) else 1 + (east_asian_width(one) in "WF") for one in text)


class NonFailingStream:
    """`stream`, except that a refused write is dropped: a closed console or a full disk never stops training.

    Everything else (isatty, fileno, encoding, ...) is the stream's own, so that a progress bar can look at it.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write `text` if the stream takes it."""
        try:
            return self._stream.write(text)
        except (OSError, ValueError) as error:  # ValueError: the stream was closed in this process
            self._lose(error)
            return len(text)

    def flush(self) -> None:
        """Flush if the stream can."""
        try:
            self._stream.flush()
        except (OSError, ValueError) as error:
            self._lose(error)

    def _lose(self, error: Exception) -> None:
        """Count it. A pipe without a reader stays so: point it at /dev/null, or Python's last flush exits with 120."""
        self.lost += 1
        if isinstance(error, BrokenPipeError):
            with suppress(OSError), open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())


def protect_output_streams() -> None:
    """Put shields before sys.stdout and sys.stderr. Called once, by a front door, before it opens anything."""
    _reopen_closed_descriptors()
    sys.stdout = _protect_stream(sys.stdout or os.fdopen(1, "w", closefd=False))
    sys.stderr = _protect_stream(sys.stderr or os.fdopen(2, "w", closefd=False))


def _reopen_closed_descriptors() -> None:
    """Point what the caller closed (`2>&-`) at /dev/null: else the next file that is opened becomes the console."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor, which is this one


def _protect_stream(stream: TextIO) -> TextIO:
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":  # a path's character may not cost its line
        stream.reconfigure(errors="backslashreplace")
    return stream if isinstance(stream, NonFailingStream) else NonFailingStream(stream)  # type: ignore[return-value]
