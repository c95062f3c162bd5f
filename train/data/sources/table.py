"""Holds the entry of `table`: images and labels that a CSV or TSV file lists."""

from __future__ import annotations

from typing import Final

from entrypoint import list_some
from train.config.schema import DataConfig
from train.data import label_table
from train.data.registry import DataSource, DataSummary, resume_facts
from train.files import shorten_name
from train.tasks import TASKS


def count(data: DataConfig) -> None:
    """Every task calls this, so it reads only the header line."""
    label_table.check_header(data)


def describe(data: DataConfig) -> DataSummary:
    """Reads the whole table."""
    from train.data import image_table  # numpy

    lists = image_table.list_table(data)
    training, validation, test = lists.counts
    names = list_some(lists.classes, describe=shorten_name)
    named = f" ({names})" if "{name}" not in TASKS[lists.task].outputs else ""
    images = f"{sum(lists.counts):,} images, {TASKS[lists.task].describe_outputs(lists.classes)}{named}"
    return DataSummary(
        description=f"{data.name} ({data.root}), {data.image_size} pixels, {images}: {training:,} for training, "
        f"{validation:,} for validation" + (f", {test:,} for the test" if test else ""),
        training=training,
        outputs=len(lists.classes),
        facts=resume_facts(lists.classes, training=training, validation=validation, task=lists.task),
        warnings=lists.warnings,
        notes=lists.notes,
        task=lists.task,
    )


def has_validation(data: DataConfig) -> bool:
    return label_table.read_table(data).counts[1] > 0


TABLE: Final = DataSource(
    reader="image_table:open_image_table",
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
