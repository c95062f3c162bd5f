"""Holds the entry of `folder`: images in class folders."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from train.config.schema import DataConfig
from train.data import class_folders
from train.data.class_folders import FolderLayout
from train.data.registry import DataSource, refuse_second_splits


def count(data: DataConfig) -> None:
    """Every task calls this, so it checks only the folders; counting would take a walk through all files."""
    find_layout(data)


def find_layout(data: DataConfig) -> FolderLayout:
    """The folders of the splits below data.root.

    Raises:
        Failure: as `class_folders.find_layout`; USAGE for a split that has a folder and is asked for by a key too.
    """
    layout = class_folders.find_layout(Path(data.root), keep_test=data.fold is not None)
    refuse_second_splits(data, validation=layout.validation, test=layout.test)
    return layout


FOLDER: Final = DataSource(
    reader="image_folder:open_image_folder",
    count=count,
    keys=frozenset({"root", "val_fraction", "test_fraction", "fold", "group", "cache", "color"}),
    origin="files",
    channels=3,
    has_class_names=True,
    hashes_paths=True,
)
