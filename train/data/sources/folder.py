"""The entry of `folder`: images in class folders, which `train check` counts in one walk without decoding one."""

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

MAX_LISTED_CLASSES: Final = 5  # names


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFolderSummary:
    """Images on both sides, by ending how many files are not read, and what looks like a slip.

    aside: in words, the folders that are not read.
    """

    classes: tuple[str, ...]
    training: int
    validation: int
    unread: Mapping[str, int]
    warnings: tuple[str, ...] = ()
    aside: str | None = None

    def row(self) -> str:
        """The images in words."""
        names = ", ".join(map(shorten_name, self.classes[:MAX_LISTED_CLASSES])) + (
            ", ..." if len(self.classes) > MAX_LISTED_CLASSES else ""
        )
        images = f"{self.training + self.validation:,} images in {len(self.classes):,} classes ({names})"
        return f"{images}: {self.training:,} to train on, {self.validation:,} held out"

    def note(self) -> str | None:
        """The other files in words; None where there are none."""
        return class_folders.describe_unread_files(self.unread)

    def facts(self) -> dict[str, Any]:
        """What a run that goes on compares with what it began with."""
        return {"classes": [*self.classes], "training": self.training, "held_out": self.validation}


def scan_image_folder(data: DataConfig) -> ImageFolderSummary:
    """Walk through data.root.

    Raises:
        Failure: NO_INPUT for missing folders and for classes without images; DATA for groups that cannot be kept on
            one side.
    """
    layout, unread = class_folders.find_layout(Path(data.root)), Counter[str]()
    inside: dict[str, set[str]] = {name: set() for name in layout.classes}
    counts = class_folders.count_images_by_class(layout.training, layout.classes, unread, inside)
    class_folders.count_files_outside_classes(Path(data.root), layout, unread)
    images, warnings = sum(counts.values()), class_folders.split_folder_warnings(inside)
    if layout.validation is not None:
        training, rest = images, class_folders.count_images(layout.validation, layout.classes, unread)
    elif data.group is None:
        rest = num_validation_samples(images, data.val_fraction)
        training, warnings = images - rest, (*warnings, *_small_class_warnings(counts, rest, data.val_fraction))
    else:
        from train.data import grouping  # numpy

        training = grouping.count_training_images(layout, data.group, data.val_fraction)
        rest = images - training
    return ImageFolderSummary(
        classes=layout.classes,
        training=training,
        validation=rest,
        unread=unread,
        warnings=warnings,
        aside=class_folders.describe_ignored_folders(layout),
    )


def _small_class_warnings(counts: Mapping[str, int], rest: int, fraction: float) -> tuple[str, ...]:
    """What is to be said of classes of which no image is held out. Of one image in 1 / fraction at least one is."""
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
    """Every task asks: only the folders are looked at. How many images they hold takes a walk through all files."""
    class_folders.find_layout(Path(data.root))


def describe(data: DataConfig) -> DataSummary:
    found = scan_image_folder(data)
    return DataSummary(
        description=f"{data.name} ({data.root}), {data.image_size} pixels, {found.row()}",
        training=found.training,
        facts=found.facts(),
        warnings=found.warnings,
        notes=tuple(filter(None, (found.note(), found.aside))),
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
