"""Computes the samples of each micro batch from the step, the same for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from threading import Thread

import numpy as np
import numpy.typing as npt

from train import rng
from train.config.batches import BatchSizes, StepCounts

SampleIndices = npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class MicroBatch:
    """One micro batch: `number` is its place among those of its global batch, whichever rank computes it. Not frozen:
    one is made in each step, and freezing takes three times as long."""

    step: int
    epoch: int
    number: int
    samples: SampleIndices


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSampler:
    """All of a run's micro batches for one rank, in order."""

    batches: BatchSizes
    steps: StepCounts
    samples: int
    rank: int
    seed: int

    def micro_batches(self, first: int) -> Iterator[MicroBatch]:
        """From optimizer step `first` (counted from 0) to the run's end."""
        order, ordered = np.empty(0, np.int64), -1
        epochs = range(first // self.steps.per_epoch, -(-self.steps.total // self.steps.per_epoch))
        orders = prefetch_epoch_orders(partial(rng.permutation, self.samples, rng.ORDER, self.seed), epochs)
        for step in range(first, self.steps.total):
            epoch, place = divmod(step, self.steps.per_epoch)
            if epoch != ordered:
                order, ordered = next(orders), epoch
            batch = order[place * self.batches.global_ : (place + 1) * self.batches.global_]
            for number in self._numbers():
                samples = batch[number * self.batches.micro : (number + 1) * self.batches.micro]
                yield MicroBatch(step=step, epoch=epoch, number=number, samples=samples)

    def global_batch(self, step: int) -> SampleIndices:
        """The samples of all ranks in optimizer step `step` (counted from 0), in the order of their micro batches."""
        epoch, place = divmod(step, self.steps.per_epoch)
        order = rng.permutation(self.samples, rng.ORDER, self.seed, epoch)
        return order[place * self.batches.global_ : (place + 1) * self.batches.global_]

    def _numbers(self) -> range:
        """This rank's micro batches of a global batch: neighbours, so that the ranks' parts lie side by side."""
        first = self.rank * self.batches.accumulation
        return range(first, first + self.batches.accumulation)


def prefetch_epoch_orders(draw: Callable[[int], SampleIndices], epochs: range) -> Iterator[SampleIndices]:
    """What `draw` gives for each epoch. A thread draws it while the one before is used: sorting a million numbers takes
    as long as many steps, and numpy lets others run meanwhile."""
    coming = _draw_in_thread(draw, epochs[0]) if epochs else None
    for epoch in epochs:
        assert coming is not None
        order = coming.result()
        coming = _draw_in_thread(draw, epoch + 1) if epoch + 1 in epochs else None
        yield order


def _draw_in_thread(draw: Callable[[int], SampleIndices], epoch: int) -> Future[SampleIndices]:
    """In a daemon: a run that ends does not wait for an order that nobody wants any more."""
    found: Future[SampleIndices] = Future()

    def run() -> None:
        try:
            found.set_result(draw(epoch))
        except Exception as error:
            found.set_exception(error)

    Thread(target=run, daemon=True, name=f"order of epoch {epoch}").start()
    return found


def rank_blocks(count: int, size: int, *, rank: int, world_size: int) -> list[SampleIndices]:
    """This rank's share of 0..count-1 in whole blocks of `size`, every sample on exactly one rank.

    The blocks are the same for any world, so that the same kernels see the same batches.
    """
    starts = range(0, count, size)[rank::world_size]
    return [np.arange(start, min(start + size, count)) for start in starts]
