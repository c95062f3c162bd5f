"""Holds the entry of `table`: images and labels that a CSV or TSV file lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from train.config.batches import num_validation_samples
from train.config.schema import DataConfig
from train.data import label_table
from train.data.label_table import TRAINING, VALIDATION
from train.data.registry import DataSource, DataSummary
from train.files import shorten_name
from train.tasks import CLASSIFICATION, TASKS

if TYPE_CHECKING:
    from train.data.splits import DataSplits

MAX_LISTED_CLASSES: Final = 5


def open_splits(data: DataConfig) -> DataSplits:
    from train.data import image_table  # torch

    return image_table.open_image_table(data)


def count(data: DataConfig) -> None:
    """Every task calls this, so it reads only the header line."""
    label_table.check_header(data)


def describe(data: DataConfig) -> DataSummary:
    """Reads the whole table. torch is imported only where the size of the split depends on which images are in it."""
    import numpy as np

    from train.data import labels  # numpy

    table = label_table.read_table(data)
    rows = [*table.rows_of(TRAINING), *table.rows_of(VALIDATION)]
    read = labels.read_labels(table, rows, data)
    grouped = data.group is not None or table.groups is not None
    rarest = int(np.bincount(read.strata).min())
    is_plain = not grouped and not table.has_validation and rarest * data.val_fraction >= 1
    if is_plain or data.val_fraction == 0 == table.has_validation:
        # Each class has a validation image, or none has.
        validation, warnings = num_validation_samples(len(rows), data.val_fraction), tuple[str, ...]()
    else:
        from train.data import image_table  # torch

        is_validation, _ = image_table.choose_validation_rows(table, rows, read.strata, data)
        validation, warnings = int(is_validation.sum()), labels.missing_validation_warnings(read, is_validation)
    training = len(rows) - validation
    facts: dict[str, Any] = {"classes": [*read.classes], "training": training, "held_out": validation}
    names = ", ".join(map(shorten_name, read.classes[:MAX_LISTED_CLASSES]))
    more = ", ..." if len(read.classes) > MAX_LISTED_CLASSES else ""
    named = f" ({names}{more})" if "{name}" not in TASKS[read.task].outputs else ""
    images = f"{len(rows):,} images, {TASKS[read.task].describe_outputs(read.classes)}{named}"
    return DataSummary(
        description=f"{data.name} ({data.root}), {data.image_size} pixels, {images}: {training:,} for training, "
        f"{validation:,} for validation",
        training=training,
        facts=facts if read.task == CLASSIFICATION else facts | {"task": read.task},
        warnings=warnings,
        notes=tuple(filter(None, [table.test_note])),
        task=read.task,
    )


def has_validation(data: DataConfig) -> bool:
    return label_table.read_table(data).has_validation


TABLE: Final = DataSource(
    open=open_splits,
    count=count,
    describe=describe,
    has_validation=has_validation,
    keys=frozenset({"root", "images", "columns", "val_fraction", "group", "cache"}),
    origin="files",
    channels=3,
    has_class_names=True,
    hashes_paths=True,
    tasks=tuple(TASKS),
)
