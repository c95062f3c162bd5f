"""Holds the entry of `table`: images and labels that a CSV or TSV file lists."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from entrypoint import list_some
from train.config.batches import SplitCounts, count_splits
from train.config.schema import DataConfig
from train.data import label_table
from train.data.registry import DataSource, DataSummary
from train.files import shorten_name
from train.tasks import TASKS, task_fact

if TYPE_CHECKING:
    from train.data.splits import DataSplits
    from train.distributed.shared_memory import HostRanks


def open_splits(data: DataConfig, host: HostRanks, cache_folder: Path | None) -> DataSplits:
    from train.data import image_table  # torch

    return image_table.open_image_table(data)


def count(data: DataConfig) -> None:
    """Every task calls this, so it reads only the header line."""
    label_table.check_header(data)


def describe(data: DataConfig) -> DataSummary:
    """Reads the whole table. torch is imported only where the splits depend on which images there are."""
    import numpy as np

    from train.data import labels  # numpy

    table = label_table.read_table(data)
    rows = table.rows_by_split()
    read = labels.read_labels(table, rows, data)
    grouped = data.group is not None or table.groups is not None
    rarest = int(np.bincount(read.strata).min())
    if table.splits is None and not grouped and data.fold is None and rarest * data.val_fraction >= 1:
        counts, warnings = count_splits(len(rows), data), tuple[str, ...]()  # each class has a validation image
    else:
        from train.data import image_table  # torch

        splits = image_table.partition_rows(table, rows, read.strata, data)
        validation, test = int(splits.validation.sum()), int(splits.test.sum())
        counts = SplitCounts(training=len(rows) - validation - test, validation=validation, test=test)
        warnings = labels.missing_validation_warnings(
            read.task, read.classes, read.values[splits.training], read.values[splits.validation]
        )
    facts: dict[str, Any] = {"classes": [*read.classes], "training": counts.training, "held_out": counts.validation}
    names = list_some(read.classes, describe=shorten_name)
    named = f" ({names})" if "{name}" not in TASKS[read.task].outputs else ""
    images = f"{len(rows):,} images, {TASKS[read.task].describe_outputs(read.classes)}{named}"
    return DataSummary(
        description=f"{data.name} ({data.root}), {data.image_size} pixels, {images}: {counts.training:,} for training, "
        f"{counts.validation:,} for validation" + (f", {counts.test:,} for the test" if counts.test else ""),
        training=counts.training,
        outputs=len(read.classes),
        facts=facts | task_fact(read.task),
        warnings=(*table.warnings, *read.warnings, *warnings),
        notes=(*table.notes, *read.notes),
        task=read.task,
    )


def has_validation(data: DataConfig) -> bool:
    return label_table.read_table(data).has_validation


TABLE: Final = DataSource(
    open=open_splits,
    count=count,
    describe=describe,
    has_validation=has_validation,
    keys=frozenset({"root", "images", "columns", "val_fraction", "test_fraction", "fold", "group", "cache", "color"}),
    origin="files",
    channels=3,
    has_class_names=True,
    hashes_paths=True,
    resizes=True,
    tasks=tuple(TASKS),
)
