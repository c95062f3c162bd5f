"""Holds the entry of `folder`: images in class folders."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from train.config.schema import DataConfig
from train.data import class_folders, split_checks
from train.data.registry import DataSource


def count(data: DataConfig) -> None:
    """Every task calls this, so it checks only the folders; counting would take a walk through all files."""
    split_checks.find_layout(data)


def has_validation(data: DataConfig) -> bool:
    return class_folders.find_layout(Path(data.root), keep_test=data.fold is not None).validation is not None


FOLDER: Final = DataSource(
    reader="image_folder:open_image_folder",
    count=count,
    has_validation=has_validation,
    keys=frozenset({"root", "val_fraction", "test_fraction", "fold", "group", "cache", "color"}),
    origin="files",
    channels=3,
    has_class_names=True,
    hashes_paths=True,
    resizes=True,
)
