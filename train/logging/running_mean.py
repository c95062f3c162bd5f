"""A running mean sums losses and correct predictions on the device and is read at log points.

The module also measures the time spent in training.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

MAX_KEPT_LOSSES: Final = 4096  # micro batches whose own loss is kept between two readings
MicroBatchStats = tuple[Tensor, Tensor, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """Means over the samples of all ranks since `RunningMean.clear`.

    The loss is NaN or infinite if any loss was. Without samples both means are NaN. extra_sums: the
    sums over all ranks of the extra values.
    """

    loss: float
    accuracy: float
    samples: int
    extra_sums: tuple[float, ...] = ()


def count_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """The number [] of correct predictions, from logits [n, classes] and labels [n]."""
    return (logits.argmax(dim=1) == labels).sum()


def sum_micro_batch(loss: Tensor, correct: Tensor, samples: int) -> Tensor:
    """The sums [3] of a micro batch: loss, correct predictions, samples. loss: the mean."""
    return torch.stack([loss.double() * samples, correct.double(), torch.full_like(loss, samples, dtype=torch.float64)])


class RunningMean:
    """Sums over micro batches. A NaN or inf loss propagates into the sum, so no separate flag is needed.

    The values stay on the device until they are read, and are then added on the CPU in order. So a step computes no
    addition, and the sums have the same bits wherever a checkpoint was saved in between.
    """

    def __init__(self, device: torch.device, sums: Sequence[float] = (0.0, 0.0, 0.0)) -> None:
        """sums: of an earlier start, from the checkpoint."""
        self._device = device
        self._loss, self._correct, self._samples = sums
        self._waiting: list[MicroBatchStats] = []
        self._losses: deque[float] = deque(maxlen=MAX_KEPT_LOSSES)

    def sums(self) -> list[float]:
        """This rank's sums: loss, correct predictions, samples."""
        self._fetch()
        return [self._loss, self._correct, self._samples]

    def add(self, loss: Tensor, correct: Tensor, samples: int) -> None:
        """Add one or several micro batches: mean loss [], correct predictions []. One host sync in MAX_KEPT_LOSSES."""
        self._waiting.append((loss, correct, samples))
        if len(self._waiting) >= MAX_KEPT_LOSSES:
            self._fetch()

    def read(self, all_reduce_sum: Callable[[Tensor], Tensor], extra: Sequence[float] = ()) -> StepMetrics:
        """The means over all ranks. `all_reduce_sum` sums over ranks in place.

        extra: the same number of values on each rank, to be summed in the same all-reduce.
        """
        values = torch.tensor([*self.sums(), *extra], dtype=torch.float64, device=self._device)
        loss, correct, samples, *extra_sums = all_reduce_sum(values).tolist()
        loss, accuracy = (loss / samples, correct / samples) if samples else (math.nan, math.nan)
        return StepMetrics(loss=loss, accuracy=accuracy, samples=int(samples), extra_sums=tuple(extra_sums))

    def losses(self) -> list[float]:
        """The mean losses that this rank has added since `clear`; at most the last MAX_KEPT_LOSSES."""
        self._fetch()
        return [*self._losses]

    def clear(self) -> None:
        """Set all sums to zero."""
        self._loss = self._correct = self._samples = 0.0
        self._waiting.clear()
        self._losses.clear()

    def _fetch(self) -> None:
        if not self._waiting:
            return
        losses, corrects, samples = zip(*self._waiting, strict=True)
        self._waiting.clear()
        values = zip(torch.stack(losses).tolist(), torch.stack(corrects).tolist(), samples, strict=True)
        for loss, correct, count in values:
            self._loss += loss * count
            self._correct += correct
            self._samples += count
            self._losses.append(loss)


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
