"""Holds the entry of `shards`: images in tar files, which an index lists."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from train.config.batches import SplitCounts, count_splits
from train.config.schema import DataConfig
from train.data import split_checks
from train.data.registry import DataSource, DataSummary, describe_test
from train.tasks import TASKS, task_fact

if TYPE_CHECKING:
    from train.data.splits import DataSplits
    from train.distributed.shared_memory import HostRanks


def open_splits(data: DataConfig, host: HostRanks, cache_folder: Path | None) -> DataSplits:
    from train.data import shards  # torch

    host.first(lambda: _compare_shards(data))  # once on each machine: on a parallel file system, a call for each shard
    _summarize(data)
    return shards.open_shards(data, host)


def count(data: DataConfig) -> int:
    return describe(data).training or 0


def describe(data: DataConfig) -> DataSummary:
    _compare_shards(data)
    return _summarize(data)


def has_validation(data: DataConfig) -> bool:
    from train.data import shard_index

    return shard_index.count_images(shard_index.read_facts(Path(data.root))[0], "validation") > 0


def _compare_shards(data: DataConfig) -> None:
    """Raises Failure: as `shard_index.read_index`, `refuse_wrong_entries` and `refuse_other_shards`."""
    from train.data import shard_index

    index = shard_index.read_index(Path(data.root))
    shard_index.refuse_wrong_entries(index)
    shard_index.refuse_other_shards(index.folder, index.shards)


def _summarize(data: DataConfig) -> DataSummary:
    """The summary; refuses a split that has shards and is asked for by a key.

    Raises:
        Failure: as `shard_index.read_facts`; USAGE.
    """
    from train.data import shard_index

    shards, labels, groups = shard_index.read_facts(Path(data.root))
    training, validation, test = (shard_index.count_images(shards, split) for split in shard_index.SPLITS)
    if validation:
        split_checks.refuse_second_validation_split(data, f"validation shards in {data.root}")
    if test:
        split_checks.refuse_second_test_split(data, f"test shards in {data.root}")
    sizes = count_splits(training, data, has_validation=validation > 0)
    notes = tuple[str, ...]()
    if groups:
        chosen, of_test, notes = shard_index.split_training(shard_index.read_index(Path(data.root)), data)
        trained = training - len(chosen) - len(of_test)
        sizes = SplitCounts(training=trained, validation=len(chosen), test=len(of_test))
    validation = validation or sizes.validation
    images = f"{sum(shard.images for shard in shards):,} images, {TASKS[labels.task].describe_outputs(labels.classes)}"
    rest = f"{sizes.training:,} for training, {validation:,} for validation{describe_test(test or sizes.test)}"
    facts: dict[str, Any] = {"classes": [*labels.classes], "training": sizes.training, "held_out": validation}
    files = f"{len(shards):,} tar file{'s' * (len(shards) != 1)}"
    return DataSummary(
        description=f"shards ({data.root}), {files}, {data.image_size} pixels, {images}: {rest}",
        training=sizes.training,
        outputs=len(labels.classes),
        facts=facts | task_fact(labels.task),
        notes=notes,
        task=labels.task,
    )


SHARDS: Final = DataSource(
    open=open_splits,
    count=count,
    describe=describe,
    has_validation=has_validation,
    keys=frozenset({"root", "val_fraction", "test_fraction", "fold", "color", "readers", "stage"}),
    origin="files",
    channels=3,
    has_class_names=True,
    hashes_paths=True,
    resizes=True,
    tasks=tuple(TASKS),
)
