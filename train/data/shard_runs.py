"""Cuts tar shards into runs of images, which are read at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

RUN_BYTES: Final = 2**20
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardRuns:
    """Images that follow each other in a shard. Each int64 [runs].

    firsts, lengths: the number of the first image, and how many there are. shards: counted from 0 without gaps.
    numbers: of the run in its shard.
    """

    firsts: Int64Array
    lengths: Int64Array
    shards: Int64Array
    numbers: Int64Array


def cut_into_runs(shards: npt.ArrayLike, offsets: npt.ArrayLike, run_bytes: int = RUN_BYTES) -> ShardRuns:
    """Cut wherever a shard ends, or its offset passes a multiple of `run_bytes`.

    shards, offsets: [images], of each image; the images of a shard follow each other by their offsets.
    """
    shards, parts = np.asarray(shards, np.int64), np.asarray(offsets, np.int64) // run_bytes
    firsts = np.flatnonzero(np.diff(shards, prepend=-1) | np.diff(parts, prepend=-1))
    _, of_shard = np.unique(shards[firsts], return_inverse=True)
    first_runs = np.flatnonzero(np.diff(of_shard, prepend=-1))
    return ShardRuns(
        firsts=firsts,
        lengths=np.diff(firsts, append=len(shards)),
        shards=of_shard.astype(np.int64),
        numbers=np.arange(len(firsts)) - first_runs[of_shard],
    )
