"""Where the images of a split lie in tar shards, and the runs in which they are read.

The index of many millions of images is mapped into memory, which all processes of a machine share. So nothing is kept
here that takes memory for each image: what a batch needs is computed from the numbers of its images.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

RUN_BYTES: Final = 2**20
Int64Array = npt.NDArray[np.int64]
Entries = npt.NDArray[np.void]


def cut_into_runs(offsets: npt.ArrayLike, run_bytes: int = RUN_BYTES) -> Int64Array:
    """The first image of each run, int64 [runs]: a run ends wherever an offset passes a multiple of `run_bytes`.

    offsets: [images], of the images of one shard in their order.
    """
    return np.flatnonzero(np.diff(np.asarray(offsets, np.int64) // run_bytes, prepend=-1))


class Selection(Protocol):
    """The images of a split, which have the numbers from 0 on, and their entries in the index."""

    def __len__(self) -> int: ...

    def entries(self, numbers: npt.ArrayLike) -> Int64Array:
        """The entries of images, in the same shape as their numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class ChosenEntries:
    """These entries, int64 [n]."""

    chosen: Int64Array

    def __len__(self) -> int:
        return len(self.chosen)

    def entries(self, numbers: npt.ArrayLike) -> Int64Array:
        """As `Selection.entries`."""
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
        """As `Selection.entries`."""
        entries: Int64Array = np.asarray(numbers) + np.searchsorted(self.numbers, numbers, side="right")
        return entries

    def count_before(self, entries: npt.ArrayLike) -> Int64Array:
        """How many images come before each of these entries."""
        counts: Int64Array = np.asarray(entries) - np.searchsorted(self.left_out, entries)
        return counts


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
