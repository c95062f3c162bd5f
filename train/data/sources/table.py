"""Holds the entry of `table`: images and labels that a CSV or TSV file lists."""

from __future__ import annotations

from typing import Final

from train.config.schema import DataConfig
from train.data import label_table
from train.data.registry import DataSource
from train.tasks import TASKS


def count(data: DataConfig) -> None:
    """Every task calls this, so it reads only the header line."""
    label_table.check_header(data)


def has_validation(data: DataConfig) -> bool:
    return label_table.read_table(data).counts[1] > 0


TABLE: Final = DataSource(
    reader="image_table:open_image_table",
    count=count,
    has_validation=has_validation,
    keys=frozenset({"root", "images", "columns", "val_fraction", "test_fraction", "fold", "group", "cache", "color"}),
    origin="files",
    channels=3,
    has_class_names=True,
    hashes_paths=True,
    resizes=True,
    tasks=tuple(TASKS),
)
