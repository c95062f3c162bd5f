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
    """One micro batch. number: its index in the global batch, on whichever rank.

    Not frozen: each step creates one, and a frozen dataclass takes three times as long.
    """

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
            epoch, position = divmod(step, self.steps.per_epoch)
            if epoch != ordered:
                order, ordered = next(orders), epoch
            batch = order[position * self.batches.global_ : (position + 1) * self.batches.global_]
            for number in self._numbers():
                samples = batch[number * self.batches.micro : (number + 1) * self.batches.micro]
                yield MicroBatch(step=step, epoch=epoch, number=number, samples=samples)

    def global_batch(self, step: int) -> SampleIndices:
        """The samples of all ranks in optimizer step `step` (counted from 0), in the order of their micro batches."""
        epoch, position = divmod(step, self.steps.per_epoch)
        order = rng.permutation(self.samples, rng.ORDER, self.seed, epoch)
        return order[position * self.batches.global_ : (position + 1) * self.batches.global_]

    def _numbers(self) -> range:
        """The numbers of this rank's micro batches in a global batch: consecutive ones."""
        first = self.rank * self.batches.accumulation
        return range(first, first + self.batches.accumulation)


def prefetch_epoch_orders(draw: Callable[[int], SampleIndices], epochs: range) -> Iterator[SampleIndices]:
    """The order that `draw` returns for each epoch; a thread draws it during the epoch before.

    Sorting a million numbers takes as long as many steps, and numpy releases the GIL meanwhile.
    """
    pending = _draw_in_thread(draw, epochs[0]) if epochs else None
    for epoch in epochs:
        assert pending is not None
        order = pending.result()
        pending = _draw_in_thread(draw, epoch + 1) if epoch + 1 in epochs else None
        yield order


def _draw_in_thread(draw: Callable[[int], SampleIndices], epoch: int) -> Future[SampleIndices]:
    """Draw in a daemon thread, so that a run that ends does not wait for an order that is no longer needed."""
    future: Future[SampleIndices] = Future()

    def run() -> None:
        try:
            future.set_result(draw(epoch))
        except Exception as error:
            future.set_exception(error)

    Thread(target=run, daemon=True, name=f"order of epoch {epoch}").start()
    return future


def rank_blocks(count: int, size: int, *, rank: int, world_size: int) -> list[SampleIndices]:
    """This rank's share of 0..count-1 in whole blocks of `size`, every sample on exactly one rank.

    The blocks are the same for any world, so that the same kernels see the same batches.
    """
    starts = range(0, count, size)[rank::world_size]
    return [np.arange(start, min(start + size, count)) for start in starts]
