"""Readings of the tally become an epoch's own figures: its time, its speed and its train loss."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one epoch, or of the part of it that this start has done.

    seconds: of training, without evaluations and saves; None for a part. loss: None where it is not finite (fp16 leaves
    such steps out). None, all of them, where no step was done.
    """

    seconds: float | None
    images_per_s: float | None
    loss: float | None


class Lap:
    """Counts from one end of an epoch to the next.

    A reading is the mean loss over all samples since the last log point, and may come before the next one. Log points
    keep no distance from the ends of epochs, so that losses are summed over the run, and epochs are differences.
    """

    def __init__(self, step: int, seconds: float, *, batch: int, loss: float = 0.0, samples: float = 0.0) -> None:
        """Start at `step`, `seconds` of training into the run.

        batch: images a step. loss, samples: the sum, and of how many images, since the last log point.
        """
        self._batch, self._opened = batch, step - round(samples) // batch
        self._before, self._window = 0.0, loss / batch
        self._step, self._seconds, self._sum = step, seconds, self._window

    def read(self, step: int, loss: float, samples: int) -> None:
        """The mean loss over so many images up to `step`: all since the last log point before it."""
        steps = samples // self._batch
        if step - steps != self._opened:
            self._before, self._opened = self._before + self._window, step - steps
        self._window = loss * steps

    def close(self, step: int, seconds: float, *, epoch: int) -> Figures:
        """What happened since the last one was closed; the next begins here. epoch: steps that a whole one has."""
        steps, took, summed = step - self._step, seconds - self._seconds, self._before + self._window
        loss = (summed - self._sum) / max(1, steps)
        if not math.isfinite(summed):
            self._before = self._window = summed = 0.0
        self._step, self._seconds, self._sum = step, seconds, summed
        return Figures(
            seconds=took if steps == epoch else None,
            images_per_s=steps * self._batch / took if steps and took > 0 else None,
            loss=loss if steps and math.isfinite(loss) else None,
        )
