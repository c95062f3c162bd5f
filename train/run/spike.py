"""From the mean losses that were read so far to a word about the next one: as it was, or a jump."""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass
from typing import Final

FACTOR: Final = 10.0  # between two readings of a training that goes well lie a few per cent
READINGS: Final = 20  # of which the median is what is usual
LEAST: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """A mean loss far above what was usual, read after `step`."""

    step: int
    loss: float
    usual: float

    def __str__(self) -> str:
        return f"the loss jumped to {self.loss:.4g} at or before step {self.step} (it was about {self.usual:.4g})"


class Jumped(Exception):
    """All ranks have seen it, at the same step: the run is to go back."""

    def __init__(self, jump: Jump) -> None:
        super().__init__(str(jump))
        self.jump = jump


class Readings:
    """The last mean losses. A jump is one of ten times their median that is also worse than guessing.

    Without the second half, a loss that has come near 0 would jump with every hard batch.
    """

    def __init__(self, classes: int) -> None:
        self._guessing = math.log(max(classes, 2))
        self._last: deque[float] = deque(maxlen=READINGS)
        self._high = False

    def compare(self, step: int, loss: float) -> Jump | None:
        """Whether this one jumps. Until there are a few to compare with, none does; an infinite one is `sound`'s."""
        if len(self._last) < LEAST or not math.isfinite(loss):
            return None
        usual = statistics.median(self._last)
        return Jump(step=step, loss=loss, usual=usual) if loss > max(FACTOR * usual, self._guessing) else None

    def add(self, step: int, loss: float) -> Jump | None:
        """Take one in; returns the jump, if it is news: not again before the loss was down once."""
        jump, before = self.compare(step, loss), self._high
        self._high = jump is not None
        if jump is None and math.isfinite(loss):
            self._last.append(loss)
        return None if before else jump
