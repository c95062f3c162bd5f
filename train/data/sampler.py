"""Computes the samples of each micro batch from the step, the same for any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from train import rng
from train.config.batches import BatchSizes, StepCounts

T = TypeVar("T")
SampleIndices = npt.NDArray[np.int64]


@dataclass(slots=True, kw_only=True)
class MicroBatch:
    """One micro batch. number: its index in the global batch, on whichever rank.

    draws: a number for each sample that differs between two draws of one sample in an epoch, and keys its augmentation.
    Not frozen: each step creates one, and a frozen dataclass takes three times as long.
    """

    step: int
    epoch: int
    number: int
    samples: SampleIndices
    draws: SampleIndices | None = None

    @property
    def augmentation_keys(self) -> SampleIndices:
        """int64 [n], with the epoch the keys of the augmentation: the samples' numbers, if each is drawn once."""
        return self.samples if self.draws is None else self.draws


class Order(Protocol):
    """The order of an epoch, all of which need not be in memory."""

    def part(self, first: int, end: int) -> EpochOrder:
        """The draws from number `first` to `end` - 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochOrder:
    """The samples of an epoch, int64 [n], in order. draws: as in `MicroBatch`; None if no sample is drawn twice."""

    samples: SampleIndices
    draws: SampleIndices | None = None

    def part(self, first: int, end: int) -> EpochOrder:
        """The draws from number `first` to `end` - 1."""
        return EpochOrder(samples=self.samples[first:end], draws=None if self.draws is None else self.draws[first:end])


def uniform_order(samples: int, seed: int, epoch: int) -> EpochOrder:
    """Every sample once."""
    return EpochOrder(samples=rng.permutation(samples, rng.ORDER, seed, epoch))


def balanced_order(labels: SampleIndices, seed: int, epoch: int) -> EpochOrder:
    """As many draws as there are samples, of every class equally often: two classes differ by one draw at most.

    The images of a class take turns: none is drawn again before all others of its class were drawn. Which classes get
    a draw more, and which images, depends on the epoch.
    """
    classes = np.unique(labels)
    each, more = divmod(len(labels), len(classes))
    num_draws = np.full(len(classes), each)
    num_draws[rng.permutation(len(classes), rng.ORDER, seed, epoch, 0)[:more]] += 1
    samples, turns = [], []
    for label, count in zip(classes.tolist(), num_draws.tolist(), strict=True):
        members = np.flatnonzero(labels == label)
        rounds = np.arange(-(-count // len(members)))[:, None]
        bits = rng.random_bits(rng.ORDER, seed, epoch, label + 1, rounds, np.arange(len(members)))
        samples.append(members[np.argsort(bits, axis=1, kind="stable")].ravel()[:count])
        turns.append(np.repeat(rounds, len(members))[:count])
    mixed = rng.permutation(len(labels), rng.ORDER, seed, epoch)
    order = np.concatenate(samples)[mixed]
    return EpochOrder(samples=order, draws=order + len(labels) * np.concatenate(turns)[mixed])


def repeat_images(order: EpochOrder, *, global_batch_size: int, repeats: int) -> EpochOrder:
    """An epoch as long as `order`, in which each global batch has the next global_batch_size / repeats images of it.

    Each of them comes `repeats` times, with other augmentations: first all images once, then all again. So the copies
    are in different micro batches if there are enough, and mixup's pairs are two images. An epoch trains on a part of
    the images, as with the samplers for repeated augmentation of torchvision and timm (Hoffer et al., 2020).
    """
    num_batches, images = len(order.samples) // global_batch_size, global_batch_size // repeats
    keys = order.samples if order.draws is None else order.draws

    def repeated(numbers: SampleIndices) -> SampleIndices:
        return np.tile(numbers[: num_batches * images].reshape(num_batches, 1, images), (1, repeats, 1)).ravel()

    copies = np.tile(np.repeat(np.arange(repeats), images), num_batches)
    return EpochOrder(samples=repeated(order.samples), draws=repeated(keys) * repeats + copies)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSampler:
    """All of a run's micro batches for one rank, in order.

    labels: int64 [samples], to draw every class equally often (data.sampling: balanced); None: every sample once.
    repeats: as data.repeats. shard_order: draws the order of an epoch of tar shards, in place of a uniform one.
    """

    batches: BatchSizes
    steps: StepCounts
    samples: int
    rank: int
    seed: int
    labels: SampleIndices | None = None
    repeats: int = 1
    shard_order: Callable[[int], Order] | None = None

    def micro_batches(self, first: int) -> Iterator[MicroBatch]:
        """From optimizer step `first` (counted from 0) to the run's end."""
        order: Order = EpochOrder(samples=np.empty(0, np.int64))
        ordered = -1
        epochs = range(first // self.steps.per_epoch, -(-self.steps.total // self.steps.per_epoch))
        orders = prefetch_epoch_orders(self._draw_epoch, epochs)
        for step in range(first, self.steps.total):
            epoch, position = divmod(step, self.steps.per_epoch)
            if epoch != ordered:
                order, ordered = next(orders), epoch
            begin = position * self.batches.global_
            for number in self._numbers():
                part = order.part(begin + number * self.batches.micro, begin + (number + 1) * self.batches.micro)
                yield MicroBatch(step=step, epoch=epoch, number=number, samples=part.samples, draws=part.draws)

    def global_batch(self, step: int) -> SampleIndices:
        """The samples of all ranks in optimizer step `step` (counted from 0), in the order of their micro batches."""
        epoch, position = divmod(step, self.steps.per_epoch)
        begin = position * self.batches.global_
        return self._draw_epoch(epoch).part(begin, begin + self.batches.global_).samples

    def _draw_epoch(self, epoch: int) -> Order:
        order: Order
        if self.labels is not None:
            order = balanced_order(self.labels, self.seed, epoch)
        elif self.shard_order is not None:
            order = self.shard_order(epoch)
        else:
            order = uniform_order(self.samples, self.seed, epoch)
        if self.repeats == 1:
            return order
        complete = order.part(0, self.samples // self.batches.global_ * self.batches.global_)
        return repeat_images(complete, global_batch_size=self.batches.global_, repeats=self.repeats)

    def _numbers(self) -> range:
        """The numbers of this rank's micro batches in a global batch: consecutive ones."""
        first = self.rank * self.batches.accumulation
        return range(first, first + self.batches.accumulation)


def prefetch_epoch_orders(draw: Callable[[int], T], epochs: range) -> Iterator[T]:
    """The order that `draw` returns for each epoch; a thread draws it during the epoch before.

    Sorting a million numbers takes as long as many steps, and numpy releases the GIL meanwhile.
    """
    pending = _draw_in_thread(draw, epochs[0]) if epochs else None
    for epoch in epochs:
        assert pending is not None
        order = pending.result()
        pending = _draw_in_thread(draw, epoch + 1) if epoch + 1 in epochs else None
        yield order


def _draw_in_thread(draw: Callable[[int], T], epoch: int) -> Future[T]:
    """Draw in a daemon thread, so that a run that ends does not wait for an order that is no longer needed."""
    future: Future[T] = Future()

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
