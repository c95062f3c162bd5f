"""Holds the entry of `folder`: images in class folders, which `train check` lists without decoding them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from entrypoint import list_some
from train.config.schema import DataConfig
from train.data import class_folders, split_checks
from train.data.registry import DataSource, DataSummary, describe_test, resume_facts
from train.files import shorten_name


def count(data: DataConfig) -> None:
    """Every task calls this, so it checks only the folders; counting would take a walk through all files."""
    split_checks.find_layout(data)


def describe(data: DataConfig) -> DataSummary:
    from train.data import image_folder  # numpy

    lists = image_folder.list_splits(data)
    training, validation, test = lists.counts
    names = list_some(lists.classes, describe=shorten_name)
    images = f"{training + validation + test:,} images in {len(lists.classes):,} classes ({names})"
    sizes = f"{training:,} for training, {validation:,} for validation{describe_test(test)}"
    return DataSummary(
        description=f"{data.name} ({data.root}), {data.image_size} pixels, {images}: {sizes}",
        training=training,
        outputs=len(lists.classes),
        facts=resume_facts(lists.classes, training=training, validation=validation),
        warnings=lists.warnings,
        notes=lists.notes,
    )


def has_validation(data: DataConfig) -> bool:
    return class_folders.find_layout(Path(data.root), keep_test=data.fold is not None).validation is not None


FOLDER: Final = DataSource(
    reader="image_folder:open_image_folder",
    count=count,
    describe=describe,
    has_validation=has_validation,
    keys=frozenset({"root", "val_fraction", "test_fraction", "fold", "group", "cache", "color"}),
    origin="files",
    channels=3,
    has_class_names=True,
    hashes_paths=True,
    resizes=True,
)
