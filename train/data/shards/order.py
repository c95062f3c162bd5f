"""The runs in which tar shards are read, and the order in which an epoch reads them: mixed, and in long runs.

Shuffling all images would read each from another place. Here the shards are shuffled, and WINDOW of them are read side
by side, in runs of about RUN_BYTES: a block is the next run of each, and its images are shuffled. The blocks, one after
the other, are cut into as many equal parts as there are readers (data.readers), and a global batch takes as many images
from each part. So a reader reads each run once, and any batch is computed from its number, on any number of ranks.
A rank has consecutive images of a batch. The parts take turns in it in bit-reversed order: so those of a rank are
spread over the epoch, and its micro batches hold as many classes as those of others. Where neighbours are mixed
(`mixing`), MIXED_READERS parts take turns from image to image, in an order that is drawn each time: two images of one
block lie near each other in the shards, so they often have one class.

The index of many millions of images is mapped into memory, which all processes of a machine share. So nothing is kept
here that takes memory for each image: what a batch needs is computed from the numbers of its images.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from train import rng
from train.config import augmentations
from train.config.checks import num_readers
from train.config.schema import RunConfig
from train.data.sampler import EpochOrder

RUN_BYTES: Final = 2**20
WINDOW: Final = 8  # shards that a reader mixes
# More parts would make pairs more random; but of more ranks than readers / MIXED_READERS one reads others' runs too.
MIXED_READERS: Final = 4
Int64Array = npt.NDArray[np.int64]
Entries = npt.NDArray[np.void]


def cut_into_runs(offsets: npt.ArrayLike, run_bytes: int = RUN_BYTES) -> Int64Array:
    """The first image of each run, int64 [runs]: a run ends wherever an offset passes a multiple of `run_bytes`.

    offsets: [images], of the images of one shard in their order.
    """
    return np.flatnonzero(np.diff(np.asarray(offsets, np.int64) // run_bytes, prepend=-1))


@dataclass(frozen=True, slots=True, eq=False)
class ChosenEntries:
    """These entries, int64 [n]: the images of a split, which have the numbers from 0 on."""

    chosen: Int64Array

    def __len__(self) -> int:
        return len(self.chosen)

    def entries(self, numbers: npt.ArrayLike) -> Int64Array:
        """The entries of images, in the same shape as their numbers."""
        entries: Int64Array = self.chosen[np.asarray(numbers)]
        return entries


@dataclass(frozen=True, slots=True, eq=False)
class RemainingEntries:
    """The first `count` entries of the index without some: only those that are left out take memory.

    left_out: sorted, int64 [n]. numbers: of the image that follows each of them, int64 [n].
    """

    count: int
    left_out: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    numbers: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return self.count - len(self.left_out)

    def entries(self, numbers: npt.ArrayLike) -> Int64Array:
        """As `ChosenEntries.entries`."""
        entries: Int64Array = np.asarray(numbers) + np.searchsorted(self.numbers, numbers, side="right")
        return entries

    def count_before(self, entries: npt.ArrayLike) -> Int64Array:
        """How many images come before each of these entries."""
        counts: Int64Array = np.asarray(entries) - np.searchsorted(self.left_out, entries)
        return counts


Selection = ChosenEntries | RemainingEntries


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrainingRuns:
    """The runs of the shards to train on.

    starts: the first entry of each run, and the end of the last, int64 [runs + 1], mapped into memory. first_of_shard:
    the first run of each shard, and the end, int64 [shards + 1]. images: those of the split.
    """

    starts: Int64Array
    first_of_shard: Int64Array
    images: RemainingEntries

    def lengths(self, shard: int) -> Int64Array:
        """How many images each run of a shard holds, int64 [runs]."""
        first, end = self.first_of_shard[shard : shard + 2]
        return np.diff(self.images.count_before(self.starts[first : end + 1]))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardLayout:
    """Where the images of a split lie.

    shards: the names of all shards, relative to the folder. entries: of the whole index, ENTRY [images], mapped.
    shard_starts: the first entry of each shard, and the end, int64 [shards + 1]. run_starts: the first entry of each
    run, and the end, int64 [runs + 1], mapped; no run has images of two shards. selection: the images of the split.
    copies: the folder in which copies of the shards appear, with data.stage.
    """

    folder: Path
    shards: tuple[str, ...]
    entries: Entries
    shard_starts: Int64Array
    run_starts: Int64Array
    selection: Selection
    copies: Path | None = None

    def paths(self, shard: str) -> tuple[str, str | None]:
        """The path of a shard, and where a complete copy of it may appear at any time, which is then read instead."""
        return str(self.folder / shard), None if self.copies is None else str(self.copies / shard)

    def shard_of(self, entry: int) -> str:
        """The name of the shard that holds an entry."""
        return self.shards[int(np.searchsorted(self.shard_starts, entry, side="right")) - 1]

    def runs_of(self, numbers: Int64Array) -> Int64Array:
        """The run that holds each of these images of the split, int64 [n]."""
        runs: Int64Array = np.searchsorted(self.run_starts, self.selection.entries(numbers), side="right") - 1
        return runs

    def run_bytes(self, run: int) -> tuple[int, int]:
        """Where in its shard the data of a run's first image begin, and where those of its last image end."""
        first, last = (self.entries[int(self.run_starts[run + step]) - step] for step in (0, 1))
        return int(first["offset"]), int(last["offset"]) + int(last["length"])

    def training_runs(self) -> TrainingRuns | None:
        """The runs of a training split, whose shards are the first ones of the index; None of other splits."""
        images = self.selection
        if not isinstance(images, RemainingEntries):
            return None
        shards = int(np.searchsorted(self.shard_starts, images.count))
        first_of_shard = np.searchsorted(self.run_starts, self.shard_starts[: shards + 1])
        return TrainingRuns(
            starts=self.run_starts[: first_of_shard[-1] + 1], first_of_shard=first_of_shard, images=images
        )


@dataclass(slots=True, kw_only=True, eq=False)
class ShardOrder:
    """The order of one epoch.

    shards: in the order in which they are read. group_starts: the first of each group that is read side by side, and
    the end, int64 [groups + 1]. first_blocks: of each group, and the end, int64 [groups + 1]. block_ends: how many
    images the blocks up to each hold, int64 [blocks]. readers: a power of two that divides the global batch.
    alternating: the number of readers of which each in turn gives one image.
    """

    runs: TrainingRuns
    shards: Int64Array
    group_starts: Int64Array
    first_blocks: Int64Array
    block_ends: Int64Array
    readers: int
    global_batch_size: int
    key: tuple[int, int]
    alternating: int = 1
    _shuffled: dict[int, Int64Array] = field(default_factory=dict)

    @classmethod
    def draw(
        cls,
        runs: TrainingRuns,
        *,
        readers: int,
        global_batch_size: int,
        seed: int,
        epoch: int,
        window: int = WINDOW,
        mixes: bool = False,
    ) -> ShardOrder:
        """The order of this epoch. mixes: samples 2k and 2k + 1 come from two readers, if there are two."""
        counts = np.diff(runs.first_of_shard)
        shards = rng.permutation(len(counts), rng.ORDER, seed, epoch)
        groups = -(-len(shards) // window)
        starts = np.arange(groups + 1) * len(shards) // groups  # of about the same size
        first_blocks = np.append(0, np.cumsum(np.maximum.reduceat(counts[shards], starts[:-1])))
        sizes = np.zeros(int(first_blocks[-1]), np.int64)
        for group, shard in zip(np.repeat(np.arange(groups), np.diff(starts)).tolist(), shards.tolist(), strict=True):
            sizes[first_blocks[group] : first_blocks[group] + counts[shard]] += runs.lengths(shard)
        return cls(
            runs=runs,
            shards=shards,
            group_starts=starts,
            first_blocks=first_blocks,
            block_ends=np.cumsum(sizes),
            readers=readers,
            global_batch_size=global_batch_size,
            key=(seed, epoch),
            alternating=min(readers, MIXED_READERS) if mixes else 1,
        )

    def part(self, first: int, end: int) -> EpochOrder:
        """The draws from number `first` to `end` - 1, counted through the global batches."""
        images_of_reader = int(self.block_ends[-1]) // self.readers
        share = self.global_batch_size // self.readers
        batch, position = np.divmod(np.arange(first, end), self.global_batch_size)
        group, in_group = np.divmod(position, share * self.alternating)
        number, turn = np.divmod(in_group, self.alternating)
        if self.alternating > 1:
            key = rng.random_bits(rng.ORDER, *self.key, batch, group, number)
            turn = np.argsort(rng.random_bits(key[:, None], np.arange(self.alternating)))[np.arange(len(turn)), turn]
        reader = _reverse_bits(self.readers)[group * self.alternating + turn]
        return EpochOrder(samples=self._images(reader * images_of_reader + batch * share + number))

    def _images(self, positions: Int64Array) -> Int64Array:
        """The images at these positions of the blocks, one after the other."""
        images = np.empty(len(positions), np.int64)
        blocks = np.searchsorted(self.block_ends, positions, side="right")
        needed = dict[int, Int64Array]()
        for block in np.unique(blocks).tolist():
            needed[block] = self._shuffled[block] if block in self._shuffled else self._shuffle(block)
            in_block = blocks == block
            begin = self.block_ends[block - 1] if block else 0
            images[in_block] = needed[block][positions[in_block] - begin]
        self._shuffled = needed  # the next batch mostly takes the same
        return images

    def _shuffle(self, block: int) -> Int64Array:
        group = int(np.searchsorted(self.first_blocks, block, side="right")) - 1
        number = block - int(self.first_blocks[group])
        shards = self.shards[self.group_starts[group] : self.group_starts[group + 1]]
        runs = self.runs.first_of_shard[shards] + number
        runs = runs[runs < self.runs.first_of_shard[shards + 1]]
        firsts, ends = (self.runs.images.count_before(self.runs.starts[each]) for each in (runs, runs + 1))
        images = np.concatenate([np.arange(first, end) for first, end in zip(firsts, ends, strict=True)])
        shuffled: Int64Array = images[rng.permutation(len(images), rng.ORDER, *self.key, block + 1)]
        return shuffled


def _reverse_bits(count: int) -> Int64Array:
    """The numbers below `count`, a power of two, with their bits in reverse: 0, 4, 2, 6, 1, 5, 3, 7."""
    numbers = np.zeros(1, np.int64)
    while len(numbers) < count:
        numbers = np.concatenate([2 * numbers, 2 * numbers + 1])
    return numbers


def draw_orders(runs: TrainingRuns | None, config: RunConfig) -> Callable[[int], ShardOrder] | None:
    """Draws the order of each epoch from the runs of tar shards; None for samples without runs."""
    if runs is None:
        return None
    readers, size, seed = num_readers(config), config.train.global_batch_size, config.run.seed
    mixes = bool(augmentations.stage_steps(config.data.augment, "batch"))
    return lambda epoch: ShardOrder.draw(
        runs, readers=readers, global_batch_size=size, seed=seed, epoch=epoch, mixes=mixes
    )
