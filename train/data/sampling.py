"""From a step's number to the samples of each micro batch: the same on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from threading import Thread

import numpy as np
import numpy.typing as npt

from train import keyed
from train.settings.batches import Batches, Steps

Samples = npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class Piece:
    """One micro batch: `number` is its place among those of its global batch, whichever rank computes it. Not frozen:
    one is made in each step, and freezing takes three times as long."""

    step: int
    epoch: int
    number: int
    samples: Samples


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """All of a run's micro batches for one rank, in order."""

    batches: Batches
    steps: Steps
    samples: int
    rank: int
    seed: int

    def pieces(self, first: int) -> Iterator[Piece]:
        """From optimizer step `first` (counted from 0) to the run's end."""
        order, ordered = np.empty(0, np.int64), -1
        epochs = range(first // self.steps.per_epoch, -(-self.steps.total // self.steps.per_epoch))
        orders = ahead(partial(keyed.permutation, self.samples, keyed.ORDER, self.seed), epochs)
        for step in range(first, self.steps.total):
            epoch, place = divmod(step, self.steps.per_epoch)
            if epoch != ordered:
                order, ordered = next(orders), epoch
            batch = order[place * self.batches.global_ : (place + 1) * self.batches.global_]
            for number in self._numbers():
                mine = batch[number * self.batches.micro : (number + 1) * self.batches.micro]
                yield Piece(step=step, epoch=epoch, number=number, samples=mine)

    def global_batch(self, step: int) -> Samples:
        """The samples of all ranks in optimizer step `step` (counted from 0), in the order of their micro batches."""
        epoch, place = divmod(step, self.steps.per_epoch)
        order = keyed.permutation(self.samples, keyed.ORDER, self.seed, epoch)
        return order[place * self.batches.global_ : (place + 1) * self.batches.global_]

    def _numbers(self) -> range:
        """This rank's micro batches of a global batch: neighbours, so that the ranks' parts lie side by side."""
        first = self.rank * self.batches.accumulation
        return range(first, first + self.batches.accumulation)


def ahead(draw: Callable[[int], Samples], epochs: range) -> Iterator[Samples]:
    """What `draw` gives for each epoch. A thread draws it while the one before is used: sorting a million numbers takes
    as long as many steps, and numpy lets others run meanwhile."""
    coming = _begun(draw, epochs[0]) if epochs else None
    for epoch in epochs:
        assert coming is not None
        order = coming.result()
        coming = _begun(draw, epoch + 1) if epoch + 1 in epochs else None
        yield order


def _begun(draw: Callable[[int], Samples], epoch: int) -> Future[Samples]:
    """In a daemon: a run that ends does not wait for an order that nobody wants any more."""
    found: Future[Samples] = Future()

    def run() -> None:
        try:
            found.set_result(draw(epoch))
        except Exception as error:
            found.set_exception(error)

    Thread(target=run, daemon=True, name=f"order of epoch {epoch}").start()
    return found


def blocks(count: int, size: int, *, rank: int, world_size: int) -> list[Samples]:
    """This rank's share of 0..count-1 in whole blocks of `size`, every sample on exactly one rank.

    The blocks are the same for any world, so that the same kernels see the same batches.
    """
    starts = range(0, count, size)[rank::world_size]
    return [np.arange(start, min(start + size, count)) for start in starts]
