"""Holds the entry of `shards`: images in tar files, which an index lists."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from train.config.batches import SplitCounts, count_splits
from train.config.schema import DataConfig
from train.data.registry import DataSource, refuse_second_splits
from train.tasks import TASKS

if TYPE_CHECKING:
    from train.data.shards.index import ShardIndex


def count(data: DataConfig) -> SplitCounts:
    """The sizes of the splits that are taken from the training shards; images with groups are split to be counted."""
    from train.data.shards import index as shard_index

    index = open_index(data)
    if index.groups is None:
        is_own = shard_index.count_images(index.shards, "validation") > 0
        return count_splits(len(index.order), data, has_validation=is_own)
    chosen, of_test, _ = shard_index.split_training(index, data)
    training = len(index.order) - len(chosen) - len(of_test)
    return SplitCounts(training=training, validation=len(chosen), test=len(of_test))


def open_index(data: DataConfig) -> ShardIndex:
    """The index, compared with the shards.

    Raises:
        Failure: as `shard_index.read_index`, `refuse_wrong_entries`, `refuse_other_shards` and `refuse_second_splits`.
    """
    from train.data.shards import index as shard_index

    index = shard_index.read_index(Path(data.root))
    shard_index.refuse_wrong_entries(index)
    shard_index.refuse_other_shards(index.folder, index.shards)
    own = {split: f"{split} shards in {data.root}" for split in {shard.split for shard in index.shards if shard.images}}
    refuse_second_splits(data, validation=own.get("validation"), test=own.get("test"))
    return index


SHARDS: Final = DataSource(
    reader="shards.source:open_shards",
    count=count,
    keys=frozenset({"root", "val_fraction", "test_fraction", "fold", "color", "readers", "stage"}),
    origin="files",
    channels=3,
    has_class_names=True,
    hashes_paths=True,
    tasks=tuple(TASKS),
)
