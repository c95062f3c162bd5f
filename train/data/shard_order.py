"""The order in which an epoch reads tar shards: mixed, the same on any number of ranks, and in long runs.

Shuffling all images would read each from another place. Here the shards are shuffled, and WINDOW of them are read side
by side, in runs of about RUN_BYTES: a block is the next run of each, and its images are shuffled. The blocks, one after
the other, are cut into as many equal parts as there are readers (data.readers), and a global batch takes as many images
from each part. So a reader reads each run once, and any batch is computed from its number, on any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from train import rng
from train.config.checks import num_readers
from train.config.schema import RunConfig
from train.data.sampler import EpochOrder
from train.data.shard_runs import Int64Array, ShardRuns, cut_into_runs
from train.data.shards import ShardSource
from train.data.splits import SampleSource

WINDOW: Final = 8  # shards that a reader mixes


@dataclass(slots=True, kw_only=True, eq=False)
class ShardOrder:
    """The order of one epoch.

    runs: sorted by block. block_ends: int64 [blocks], how many images the blocks up to each hold; run_ends: how many
    runs. readers: divides the global batch.
    """

    runs: ShardRuns
    block_ends: Int64Array
    run_ends: Int64Array
    readers: int
    global_batch_size: int
    key: tuple[int, int]
    _shuffled: dict[int, Int64Array] = field(default_factory=dict)

    @classmethod
    def draw(
        cls, runs: ShardRuns, *, readers: int, global_batch_size: int, seed: int, epoch: int, window: int = WINDOW
    ) -> ShardOrder:
        """The order of this epoch."""
        positions = np.empty(int(runs.shards.max()) + 1, np.int64)
        positions[rng.permutation(len(positions), rng.ORDER, seed, epoch)] = np.arange(len(positions))
        group, in_group = np.divmod(positions[runs.shards], window)
        order = np.lexsort((in_group, runs.numbers, group))
        chosen = ShardRuns(
            firsts=runs.firsts[order],
            lengths=runs.lengths[order],
            shards=runs.shards[order],
            numbers=runs.numbers[order],
        )
        ends = np.flatnonzero(np.diff(group[order], append=-1) | np.diff(chosen.numbers, append=-1)) + 1
        return cls(
            runs=chosen,
            block_ends=np.cumsum(chosen.lengths)[ends - 1],
            run_ends=ends,
            readers=readers,
            global_batch_size=global_batch_size,
            key=(seed, epoch),
        )

    def part(self, first: int, end: int) -> EpochOrder:
        """The draws from number `first` to `end` - 1, counted through the global batches."""
        images_of_reader = int(self.block_ends[-1]) // self.readers
        share = self.global_batch_size // self.readers
        batch, position = np.divmod(np.arange(first, end), self.global_batch_size)
        reader, number = np.divmod(position, share)
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
        runs = slice(self.run_ends[block - 1] if block else 0, self.run_ends[block])
        firsts, lengths = self.runs.firsts[runs], self.runs.lengths[runs]
        before = np.cumsum(lengths) - lengths
        images = np.arange(int(lengths.sum())) + np.repeat(firsts - before, lengths)
        shuffled: Int64Array = images[rng.permutation(len(images), rng.ORDER, *self.key, block + 1)]
        return shuffled


def draw_orders(training: SampleSource, config: RunConfig) -> Callable[[int], ShardOrder] | None:
    """Draws the order of each epoch of tar shards; None for other samples."""
    if not isinstance(training, ShardSource):
        return None
    runs = cut_into_runs(training.paths.entries["shard"], training.paths.entries["offset"])
    readers, size, seed = num_readers(config), config.train.global_batch_size, config.run.seed
    return lambda epoch: ShardOrder.draw(runs, readers=readers, global_batch_size=size, seed=seed, epoch=epoch)
