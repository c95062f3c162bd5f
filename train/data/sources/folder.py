"""Holds the entry of `folder`: images in class folders, which `train check` counts without decoding them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from train.config.batches import num_validation_samples
from train.config.schema import DataConfig
from train.data import class_folders
from train.data.registry import DataSource, DataSummary
from train.files import shorten_name

if TYPE_CHECKING:
    from train.data.splits import DataSplits

MAX_LISTED_CLASSES: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFolderSummary:
    """The number of images in both splits and of unread files by ending, and warnings of likely mistakes.

    aside: a note of the folders that are not read.
    """

    classes: tuple[str, ...]
    training: int
    validation: int
    unread: Mapping[str, int]
    warnings: tuple[str, ...] = ()
    aside: str | None = None

    def row(self) -> str:
        """The number of images and classes, for messages."""
        names = ", ".join(map(shorten_name, self.classes[:MAX_LISTED_CLASSES])) + (
            ", ..." if len(self.classes) > MAX_LISTED_CLASSES else ""
        )
        images = f"{self.training + self.validation:,} images in {len(self.classes):,} classes ({names})"
        return f"{images}: {self.training:,} for training, {self.validation:,} for validation"

    def note(self) -> str | None:
        """A note of the other files; None if there are none."""
        return class_folders.describe_unread_files(self.unread)

    def facts(self) -> dict[str, Any]:
        """What a resumed run compares with the facts of its start."""
        return {"classes": [*self.classes], "training": self.training, "held_out": self.validation}


def scan_image_folder(data: DataConfig) -> ImageFolderSummary:
    """Walk through data.root.

    Raises:
        Failure: NO_INPUT for missing folders and for classes without images; DATA for groups that cannot be kept in
            one split.
    """
    layout, unread = class_folders.find_layout(Path(data.root)), Counter[str]()
    inside: dict[str, set[str]] = {name: set() for name in layout.classes}
    counts = class_folders.count_images_by_class(layout.training, layout.classes, unread, inside)
    class_folders.count_files_outside_classes(Path(data.root), layout, unread)
    images, warnings = sum(counts.values()), class_folders.split_folder_warnings(inside)
    if layout.validation is not None:
        training, validation = images, class_folders.count_images(layout.validation, layout.classes, unread)
    elif data.group is None:
        validation = num_validation_samples(images, data.val_fraction)
        training, warnings = (
            images - validation,
            (*warnings, *_small_class_warnings(counts, validation, data.val_fraction)),
        )
    else:
        from train.data import grouping  # numpy

        training = grouping.count_training_images(layout, data.group, data.val_fraction)
        validation = images - training
    return ImageFolderSummary(
        classes=layout.classes,
        training=training,
        validation=validation,
        unread=unread,
        warnings=warnings,
        aside=class_folders.describe_ignored_folders(layout),
    )


def _small_class_warnings(counts: Mapping[str, int], rest: int, fraction: float) -> tuple[str, ...]:
    """Warnings of classes without a validation image. A class of 1 / fraction images has at least one."""
    if fraction == 0 or min(counts.values()) * fraction >= 1:
        return ()
    import numpy as np

    from train.data import image_folder

    labels = np.repeat(np.arange(len(counts)), [*counts.values()])
    chosen = np.bincount(labels[image_folder.validation_mask(labels, rest)], minlength=len(counts))
    training = [count - held for count, held in zip(counts.values(), chosen.tolist(), strict=True)]
    return class_folders.missing_validation_warnings([*counts], training, chosen.tolist())


def open_splits(data: DataConfig) -> DataSplits:
    from train.data import image_folder  # torch

    return image_folder.open_image_folder(data)


def count(data: DataConfig) -> None:
    """Every task calls this, so it checks only the folders; counting would take a walk through all files."""
    class_folders.find_layout(Path(data.root))


def describe(data: DataConfig) -> DataSummary:
    summary = scan_image_folder(data)
    return DataSummary(
        description=f"{data.name} ({data.root}), {data.image_size} pixels, {summary.row()}",
        training=summary.training,
        facts=summary.facts(),
        warnings=summary.warnings,
        notes=tuple(filter(None, (summary.note(), summary.aside))),
    )


def has_validation(data: DataConfig) -> bool:
    return class_folders.find_layout(Path(data.root)).validation is not None


FOLDER: Final = DataSource(
    open=open_splits,
    count=count,
    describe=describe,
    has_validation=has_validation,
    keys=frozenset({"root", "val_fraction", "group", "cache"}),
    origin="files",
    channels=3,
    has_class_names=True,
    hashes_paths=True,
)
