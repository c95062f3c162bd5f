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

MAX_KEPT_LOSSES: Final = 4096  # micro batches whose own loss is remembered between two readings
MicroBatchStats = tuple[Tensor, Tensor, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """Over the samples since the tally was cleared, all ranks together. loss is NaN or infinite if any was.

    Of no samples both are NaN. beside: the sums of what was sent along.
    """

    loss: float
    accuracy: float
    samples: int
    beside: tuple[float, ...] = ()


def count_correct(logits: Tensor, labels: Tensor) -> Tensor:
    """How many answers are right, from [n, classes] and [n]."""
    return (logits.argmax(dim=1) == labels).sum()


def sum_micro_batch(loss: Tensor, right: Tensor, samples: int) -> Tensor:
    """What several micro batches can be added up by [3]: summed loss, right answers, samples."""
    return torch.stack([loss.double() * samples, right.double(), torch.full_like(loss, samples, dtype=torch.float64)])


class RunningMean:
    """Sums over micro batches. An infinite or undefined loss spoils the sum, so that it needs no flag of its own.

    What micro batches give stays on the device until it is read, and is then added up on the CPU, one after the
    other: a step pays for no addition, and the sums are the same bits wherever a checkpoint came between.
    """

    def __init__(self, device: torch.device, sums: Sequence[float] = (0.0, 0.0, 0.0)) -> None:
        """sums: what `numbers` gave, where an earlier start has begun."""
        self._device = device
        self._loss, self._right, self._samples = sums
        self._waiting: list[MicroBatchStats] = []
        self._losses: deque[float] = deque(maxlen=MAX_KEPT_LOSSES)

    def numbers(self) -> list[float]:
        """This rank's sums, for a checkpoint."""
        self._fetch()
        return [self._loss, self._right, self._samples]

    def take(self, loss: Tensor, right: Tensor, samples: int) -> None:
        """Add a micro batch, or several together: mean loss [], right answers []. No host sync, but one in
        MAX_KEPT_LOSSES."""
        self._waiting.append((loss, right, samples))
        if len(self._waiting) >= MAX_KEPT_LOSSES:
            self._fetch()

    def read(self, total: Callable[[Tensor], Tensor], beside: Sequence[float] = ()) -> StepMetrics:
        """The means over all ranks. `total` sums over ranks in place.

        beside: as many other numbers on each rank, to be summed in the same exchange.
        """
        mine = torch.tensor([*self.numbers(), *beside], dtype=torch.float64, device=self._device)
        loss, right, samples, *rest = total(mine).tolist()
        loss, right = (loss / samples, right / samples) if samples else (math.nan, math.nan)
        return StepMetrics(loss=loss, accuracy=right, samples=int(samples), beside=tuple(rest))

    def losses(self) -> list[float]:
        """The mean loss of each that this rank has taken since the tally was cleared; of many the last ones."""
        self._fetch()
        return [*self._losses]

    def clear(self) -> None:
        """Start again."""
        self._loss = self._right = self._samples = 0.0
        self._waiting.clear()
        self._losses.clear()

    def _fetch(self) -> None:
        if not self._waiting:
            return
        losses, rights, samples = zip(*self._waiting, strict=True)
        self._waiting.clear()
        for loss, right, count in zip(torch.stack(losses).tolist(), torch.stack(rights).tolist(), samples, strict=True):
            self._loss += loss * count
            self._right += right
            self._samples += count
            self._losses.append(loss)


class TrainingStopwatch:
    """Seconds spent in training, without what is done between steps (evaluation, saving)."""

    def __init__(self, seconds: float = 0.0, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since, self._before = clock, clock(), seconds

    @property
    def seconds(self) -> float:
        """So far, earlier starts of the run included."""
        return self._before + self._clock() - self._since

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count what happens inside."""
        self._before = self.seconds
        try:
            yield
        finally:
            self._since = self._clock()
