"""A stream that may be closed or full becomes one that training can always write to."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO


class Shielded:
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


def shield() -> None:
    """Put shields before sys.stdout and sys.stderr. Called once, by a front door, before it opens anything."""
    _open_closed()
    sys.stdout = _shielded(sys.stdout or os.fdopen(1, "w", closefd=False))
    sys.stderr = _shielded(sys.stderr or os.fdopen(2, "w", closefd=False))


def _open_closed() -> None:
    """Point what the caller closed (`2>&-`) at /dev/null: else the next file that is opened becomes the console."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor, which is this one


def _shielded(stream: TextIO) -> TextIO:
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":  # a path's character may not cost its line
        stream.reconfigure(errors="backslashreplace")
    return stream if isinstance(stream, Shielded) else Shielded(stream)  # type: ignore[return-value]
