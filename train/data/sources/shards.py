"""Holds the entry of `shards`: images in tar files, which an index lists."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from train.config.schema import DataConfig
from train.data.registry import DataSource, refuse_second_splits
from train.tasks import TASKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from train.data.shards.index import Shard


def count(data: DataConfig) -> None:
    """Every task calls this, so it reads only which shards there are; the ranks compare the index with them."""
    from train.data.shards import index as shard_index

    refuse_taken_splits(data, shard_index.read_facts(Path(data.root))[0])


def refuse_taken_splits(data: DataConfig, shards: Sequence[Shard]) -> None:
    """Raises Failure (USAGE) for a split that has shards and is asked for by a key."""
    own = {split: f"{split} shards in {data.root}" for split in {shard.split for shard in shards if shard.images}}
    refuse_second_splits(data, validation=own.get("validation"), test=own.get("test"))


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
