"""Signals become a flag that the loop looks at once per step."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Self

from entrypoint import SIGNAL_REPEAT_WINDOW_S
from train.run.deadline import Deadline

# TERM: preemption, time limit, docker stop. INT: Ctrl-C. USR1, USR2: `#SBATCH --signal`, `scancel -s`.
WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
ABORTED = 128 + signal.SIGINT


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """The first signal that asked the run to stop: its name ("SIGTERM") and when (the clock's seconds)."""

    name: str
    at: float


class Watch:
    """While entered, TERM, INT, USR1 and USR2 only set `received`; a second INT after 2 s ends the process with 130.
    `deadline` is when the time is up, where that is known.

    Saving, logging and collectives stay out of handlers: they deadlock there. A second TERM (Slurm sends one at the
    end of the grace time) changes nothing, because the save is already under way.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, abort: Callable[[int], Any] = os._exit) -> None:
        self.received: Received | None = None
        self.deadline: Deadline | None = None
        self._clock, self._abort = clock, abort
        self._interrupted: float | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Install the handlers. In the main thread only, as Python demands."""
        for number in WATCHED:
            self._before[number] = signal.signal(number, self.handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Put back the handlers that were there."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def handle(self, number: int, frame: FrameType | None = None) -> None:
        """What happens when signal `number` arrives."""
        now = self._clock()
        if self.received is None:
            self.received = Received(name=signal.Signals(number).name, at=now)
        if number == signal.SIGINT:
            self._interrupt(now)

    def _interrupt(self, now: float) -> None:
        if self._interrupted is None:
            self._interrupted = now
        elif now - self._interrupted > SIGNAL_REPEAT_WINDOW_S:
            self._abort(ABORTED)
