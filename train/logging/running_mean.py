"""`RunningMean` averages the training loss and the values that the task names between two log points.

To log one more value, add it to `averaged` and `sum_values` of the task, in `train.tasks`. The module also
measures the time spent in training.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from train.tasks.base import StepLoss

MAX_KEPT_LOSSES: Final = 4096  # micro batches whose own loss is kept between two readings


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """Means over the samples of all ranks since `RunningMean.clear`.

    means: of the loss and the task's `averaged`, by name. The loss is NaN or infinite if any loss was. Without samples
    all means are NaN.
    extra_sums: the sums over all ranks of the extra values.
    """

    means: Mapping[str, float]
    samples: int
    extra_sums: tuple[float, ...] = ()

    @property
    def loss(self) -> float:
        """The mean loss."""
        return self.means["loss"]


class RunningMean:
    """Sums over micro batches. A NaN or inf loss propagates into the sum, so no separate flag is needed.

    The values stay on the device until they are read, and are then added on the CPU in order. So a step computes no
    addition, and the sums have the same bits wherever a checkpoint was saved in between.
    """

    def __init__(self, device: torch.device, averaged: Sequence[str], sums: Sequence[float] | None = None) -> None:
        """averaged: as in the task. sums: of an earlier start, from the checkpoint."""
        self._device, self._names = device, ("loss", *averaged)
        self._sums = [*sums] if sums else [0.0] * (len(self._names) + 1)
        self._waiting: list[StepLoss] = []
        self._losses: deque[float] = deque(maxlen=MAX_KEPT_LOSSES)

    def sums(self) -> list[float]:
        """This rank's sums: one for each value, then the number of samples."""
        self._fetch()
        return [*self._sums]

    def add(self, step_loss: StepLoss) -> None:
        """Add the values of one or several micro batches, detached. One host sync in MAX_KEPT_LOSSES calls.

        Of 0 samples only the loss is kept: another rank counts them.
        """
        self._waiting.append(step_loss)
        if len(self._waiting) >= MAX_KEPT_LOSSES:
            self._fetch()

    def read(self, all_reduce_sum: Callable[[Tensor], Tensor], extra: Sequence[float] = ()) -> StepMetrics:
        """The means over all ranks. `all_reduce_sum` sums over ranks in place.

        extra: the same number of values on each rank, to be summed in the same all-reduce.
        """
        numbers = torch.tensor([*self.sums(), *extra], dtype=torch.float64, device=self._device)
        totals = all_reduce_sum(numbers).tolist()
        *sums, samples = totals[: len(self._sums)]
        means = {name: total / samples if samples else math.nan for name, total in zip(self._names, sums, strict=True)}
        return StepMetrics(means=means, samples=int(samples), extra_sums=tuple(totals[len(self._sums) :]))

    def losses(self) -> list[float]:
        """The mean losses that this rank has added since `clear`; at most the last MAX_KEPT_LOSSES."""
        self._fetch()
        return [*self._losses]

    def clear(self) -> None:
        """Set all sums to zero."""
        self._sums = [0.0] * len(self._sums)
        self._waiting.clear()
        self._losses.clear()

    def _fetch(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        losses = torch.stack([each.loss for each in waiting]).tolist()
        others = [torch.stack([each.values[name] for each in waiting]).tolist() for name in self._names[1:]]
        for each, loss, *values in zip(waiting, losses, *others, strict=True):
            if each.samples:
                for index, value in enumerate((loss * each.samples, *values, each.samples)):
                    self._sums[index] += value
        self._losses.extend(losses)


class TrainingStopwatch:
    """Measures the seconds spent in training, without evaluations and saves."""

    def __init__(self, seconds: float = 0.0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since, self._before = clock, clock(), seconds

    @property
    def seconds(self) -> float:
        """Seconds so far, including earlier starts of the run."""
        return self._before + self._clock() - self._since

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count what happens inside."""
        self._before = self.seconds
        try:
            yield
        finally:
            self._since = self._clock()
