"""Holds the entry of `table`: images and labels that a CSV or TSV file lists."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from train.config.batches import num_validation_samples
from train.config.schema import DataConfig
from train.data import label_table
from train.data.label_table import TRAINING, VALIDATION
from train.data.registry import DataSource, DataSummary
from train.data.sources.folder import ImageFolderSummary, small_class_warnings

if TYPE_CHECKING:
    from train.data.splits import DataSplits


def open_splits(data: DataConfig) -> DataSplits:
    from train.data import image_table  # torch

    return image_table.open_image_table(data)


def count(data: DataConfig) -> None:
    """Every task calls this, so it reads only the header line."""
    label_table.check_header(data)


def describe(data: DataConfig) -> DataSummary:
    from train.data import labels  # numpy

    table = label_table.read_table(data)
    rows = [*table.rows_of(TRAINING), *table.rows_of(VALIDATION)]
    read = labels.read_labels(table, rows)
    labels.refuse_wrong_class_count(data, read.classes)
    validation, warnings = len(table.rows_of(VALIDATION)), tuple[str, ...]()
    if data.group is not None or (table.groups is not None and not table.has_validation):
        from train.data import image_table  # torch

        is_validation, _ = image_table.choose_validation_rows(table, rows, read.strata, data)
        validation = int(is_validation.sum())
    elif not table.has_validation:
        validation = num_validation_samples(len(rows), data.val_fraction)
        counts = Counter(read.values.tolist())
        by_class = {name: counts[number] for number, name in enumerate(read.classes)}
        warnings = small_class_warnings(by_class, validation, data.val_fraction)
    summary = ImageFolderSummary(
        classes=read.classes,
        training=len(rows) - validation,
        validation=validation,
        unread={},
        warnings=warnings,
        aside=table.test_note,
    )
    return DataSummary(
        description=f"{data.name} ({data.root}), {data.image_size} pixels, {summary.row()}",
        training=summary.training,
        facts=summary.facts(),
        warnings=summary.warnings,
        notes=tuple(filter(None, [summary.aside])),
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
)
