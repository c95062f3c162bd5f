"""Holds the entry of `shards`: images in tar files, which an index lists."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from train.config.batches import SplitCounts, count_splits
from train.config.schema import DataConfig
from train.data import split_checks
from train.data.registry import DataSource, DataSummary, describe_test, resume_facts
from train.tasks import TASKS


def count(data: DataConfig) -> int:
    return describe(data).training or 0


def describe(data: DataConfig) -> DataSummary:
    compare_shards(data)
    return summarize(data)


def has_validation(data: DataConfig) -> bool:
    from train.data.shards import index as shard_index

    return shard_index.count_images(shard_index.read_facts(Path(data.root))[0], "validation") > 0


def compare_shards(data: DataConfig) -> None:
    """Raises Failure: as `shard_index.read_index`, `refuse_wrong_entries` and `refuse_other_shards`."""
    from train.data.shards import index as shard_index

    index = shard_index.read_index(Path(data.root))
    shard_index.refuse_wrong_entries(index)
    shard_index.refuse_other_shards(index.folder, index.shards)


def summarize(data: DataConfig) -> DataSummary:
    """The summary; refuses a split that has shards and is asked for by a key.

    Raises:
        Failure: as `shard_index.read_facts`; USAGE.
    """
    from train.data.shards import index as shard_index

    shards, labels, groups = shard_index.read_facts(Path(data.root))
    training, validation, test = (shard_index.count_images(shards, split) for split in shard_index.SPLITS)
    split_checks.refuse_second_splits(
        data,
        validation=f"validation shards in {data.root}" if validation else None,
        test=f"test shards in {data.root}" if test else None,
    )
    sizes = count_splits(training, data, has_validation=validation > 0)
    notes = tuple[str, ...]()
    if groups:
        chosen, of_test, notes = shard_index.split_training(shard_index.read_index(Path(data.root)), data)
        trained = training - len(chosen) - len(of_test)
        sizes = SplitCounts(training=trained, validation=len(chosen), test=len(of_test))
    validation = validation or sizes.validation
    images = f"{sum(shard.images for shard in shards):,} images, {TASKS[labels.task].describe_outputs(labels.classes)}"
    rest = f"{sizes.training:,} for training, {validation:,} for validation{describe_test(test or sizes.test)}"
    files = f"{len(shards):,} tar file{'s' * (len(shards) != 1)}"
    return DataSummary(
        description=f"shards ({data.root}), {files}, {data.image_size} pixels, {images}: {rest}",
        training=sizes.training,
        outputs=len(labels.classes),
        facts=resume_facts(labels.classes, training=sizes.training, validation=validation, task=labels.task),
        notes=notes,
        task=labels.task,
    )


SHARDS: Final = DataSource(
    reader="shards.source:open_shards",
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
