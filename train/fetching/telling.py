"""What a long wait is doing, for the one who waits: in place on a terminal, in a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

IN_PLACE_S, LINES_S = 0.2, 10.0


class Teller:
    """Writes to `stream`: facts with `line`, and with `passing` what the next moment replaces."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._terminal = stream.isatty()
        self._pause = IN_PLACE_S if self._terminal else LINES_S
        self._last = clock()
        self._open = False  # a line that is not ended

    def line(self, text: str) -> None:
        """A line that stays."""
        self._write(f"{text}\n", open_after=False)
        self._last = self._clock()

    def passing(self, text: str) -> None:
        """A line that need not stay: left out where the last one is too near."""
        if self._clock() - self._last >= self._pause:
            self._last = self._clock()
            self._write(text if self._terminal else f"{text}\n", open_after=self._terminal)

    def end(self) -> None:
        """Leave the console clean for others."""
        self._write("", open_after=False)

    def _write(self, text: str, *, open_after: bool) -> None:
        self._stream.write(("\r\x1b[K" if self._open else "") + text)
        self._stream.flush()
        self._open = open_after
