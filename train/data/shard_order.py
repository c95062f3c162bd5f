"""The order in which an epoch reads tar shards: mixed, the same on any number of ranks, and in long runs.

Shuffling all images would read each from another place. Here the shards are shuffled, and WINDOW of them are read side
by side, in runs of about RUN_BYTES: a block is the next run of each, and its images are shuffled. The blocks, one after
the other, are cut into as many equal parts as there are readers (data.readers), and a global batch takes as many images
from each part. So a reader reads each run once, and any batch is computed from its number, on any number of ranks.
A rank has consecutive images of a batch. The parts take turns in it as the bits of their numbers do when they are
reversed: so those of a rank are spread over the epoch, and its micro batches hold as many classes as those of others.
Where neighbours are mixed (`mixing`), MIXED_READERS parts take turns from image to image, in an order that is drawn
each time: two images of one block lie near each other in the shards, so they often have one class.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from train import rng
from train.config import augmentations
from train.config.checks import num_readers
from train.config.schema import RunConfig
from train.data.sampler import EpochOrder
from train.data.shard_runs import Int64Array, TrainingRuns

WINDOW: Final = 8  # shards that a reader mixes
# More parts would come closer to pairs by chance; but a rank of more than readers / MIXED_READERS reads runs of others.
MIXED_READERS: Final = 4


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
