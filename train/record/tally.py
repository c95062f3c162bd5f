"""What each micro batch did, added up on the device and read at log points only, and the time that training took."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

TAKEN: Final = 4096  # micro batches whose own loss is remembered between two readings


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """Over the samples since the tally was cleared, all ranks together. loss is NaN or infinite if any was."""

    loss: float
    accuracy: float
    samples: int


def sums(loss: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """A micro batch for the tally: its summed loss, right answers and samples, from mean loss, [n, classes] and [n]."""
    right = (logits.argmax(dim=1) == labels).sum()
    count = torch.full_like(right, len(labels))
    return torch.stack([loss.double() * len(labels), right.double(), count.double()])


class Tally:
    """Sums over micro batches. An infinite or undefined loss spoils the sum, so that it needs no flag of its own."""

    def __init__(self, device: torch.device, sums: Sequence[float] = (0.0, 0.0, 0.0)) -> None:
        """sums: what `numbers` gave, where an earlier start has begun."""
        self._sums = torch.tensor(sums, dtype=torch.float64, device=device)
        self._taken: deque[Tensor] = deque(maxlen=TAKEN)

    def numbers(self) -> list[float]:
        """This rank's sums, for a checkpoint."""
        return self._sums.tolist()

    def take(self, sums: Tensor) -> None:
        """Add what `sums` gave for a micro batch, or for several together. No host sync."""
        self._sums += sums
        self._taken.append(sums)

    def read(self, total: Callable[[Tensor], Tensor]) -> Means | None:
        """The means over all ranks; None if nothing was added. `total` sums over ranks in place."""
        loss, right, samples = total(self._sums.clone()).tolist()
        return Means(loss=loss / samples, accuracy=right / samples, samples=int(samples)) if samples else None

    def losses(self) -> list[float]:
        """The mean loss of each that this rank has taken since the tally was cleared; of many the last ones."""
        return [loss / samples for loss, _, samples in torch.stack([*self._taken]).tolist()] if self._taken else []

    def clear(self) -> None:
        """Start again."""
        self._sums.zero_()
        self._taken.clear()


class Stopwatch:
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
