"""A signal becomes an ending at once before the first step, and a note for the loop after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from entrypoint import ExitCode, Failure
from train.signals import Watch


class Bell:
    """A signal ends this rank at once while there is nothing to save; later the loop looks at `watch`."""

    def __init__(self) -> None:
        self.watch = Watch()
        self._waits = False

    def only_note(self) -> None:
        """From here on nothing is interrupted: training has begun, or this rank is leaving anyway."""
        self._waits = True

    def ring(self, signum: int, frame: FrameType | None) -> None:
        """The handler."""
        self.watch.handle(signum, frame)
        self._answer()

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Answer at the end of what happens inside: importing torch swallows exceptions, and cannot be begun twice."""
        self._waits = True
        yield
        self._waits = False
        self._answer()

    def _answer(self) -> None:
        if self.watch.received and not self._waits:
            what = f"stopped by {self.watch.received.name} before the first step"
            raise Failure(what, fix="start the same command again", code=ExitCode.STOPPED)
