"""Holds the entry of `folder`: images in class folders, which `train check` counts without decoding them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from entrypoint import list_some
from train.config.batches import SplitCounts, count_splits
from train.config.schema import DataConfig
from train.data import class_folders, split_checks
from train.data.class_folders import FolderLayout
from train.data.registry import DataSource, DataSummary, describe_test
from train.files import shorten_name

if TYPE_CHECKING:
    from train.data.splits import DataSplits
    from train.distributed.shared_memory import HostRanks


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFolderSummary:
    """The number of images in the splits and of unread files by ending, and warnings of likely mistakes.

    remarks: notes of folders that are not read, or not used as their names say.
    """

    classes: tuple[str, ...]
    training: int
    validation: int
    test: int
    unread: Mapping[str, int]
    warnings: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def row(self) -> str:
        """The number of images and classes, for messages."""
        names = list_some(self.classes, describe=shorten_name)
        count = self.training + self.validation + self.test
        images = f"{count:,} images in {len(self.classes):,} classes ({names})"
        sizes = f"{self.training:,} for training, {self.validation:,} for validation"
        return f"{images}: {sizes}{describe_test(self.test)}"

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
    layout, unread = split_checks.find_layout(data), Counter[str]()
    inside: dict[str, set[str]] = {name: set() for name in layout.classes}
    counts = class_folders.count_images_by_class(layout.training, layout.classes, unread, inside)
    class_folders.count_files_outside_classes(Path(data.root), layout, unread)
    warnings = class_folders.split_folder_warnings(inside)
    sizes = count_splits(sum(counts.values()), data, has_validation=layout.validation is not None)
    if data.group is not None:
        sizes = _count_splits_by_group(layout, data)
    validation, test = sizes.validation, sizes.test
    if layout.validation is not None:
        validation = class_folders.count_images(layout.validation, layout.classes, unread)
    elif data.group is None:
        warnings = (*warnings, *_small_class_warnings(counts, data))
    if layout.test is not None:
        test = class_folders.count_images(layout.test, class_folders.class_names(layout.test), unread)
    remarks = (class_folders.describe_ignored_folders(layout), class_folders.describe_test_as_validation(layout))
    return ImageFolderSummary(
        classes=layout.classes,
        training=sizes.training,
        validation=validation,
        test=test,
        unread=unread,
        warnings=warnings,
        remarks=tuple(filter(None, remarks)),
    )


def _count_splits_by_group(layout: FolderLayout, data: DataConfig) -> SplitCounts:
    """The sizes of the splits of the training folder, if they are whole groups.

    Raises:
        Failure: as `grouping.group_names` and `partition.partition_samples`.
    """
    import numpy as np

    from train.data import grouping, partition

    files = [list(class_folders.image_files(path)) for path in class_folders.class_paths(layout.training).values()]
    labels = np.repeat(np.arange(len(files)), [len(of_class) for of_class in files])
    paths = (path.relative_to(layout.training).as_posix() for of_class in files for path in of_class)
    groups = grouping.group_names(paths, data.group or "")
    parts = partition.partition_samples(labels, data, groups=groups, has_validation=layout.validation is not None)
    masks = (parts.training, parts.validation, parts.test)
    training, validation, test = (int(mask.sum()) for mask in masks)
    return SplitCounts(training=training, validation=validation, test=test)


def _small_class_warnings(counts: Mapping[str, int], data: DataConfig) -> tuple[str, ...]:
    """Warnings of classes without a validation image. A class of 1 / fraction images has at least one."""
    if data.fold is None and (data.val_fraction == 0 or min(counts.values()) * data.val_fraction >= 1):
        return ()
    import numpy as np

    from train.data import partition

    labels = np.repeat(np.arange(len(counts)), [*counts.values()])
    parts = partition.partition_samples(labels, data)
    training, validation = (
        np.bincount(labels[mask], minlength=len(counts)) for mask in (parts.training, parts.validation)
    )
    return class_folders.missing_validation_warnings([*counts], training.tolist(), validation.tolist())


def open_splits(data: DataConfig, host: HostRanks, cache_folder: Path | None) -> DataSplits:
    from train.data import image_folder  # torch

    return image_folder.open_image_folder(data, host, cache_folder)


def count(data: DataConfig) -> None:
    """Every task calls this, so it checks only the folders; counting would take a walk through all files."""
    split_checks.find_layout(data)


def describe(data: DataConfig) -> DataSummary:
    summary = scan_image_folder(data)
    return DataSummary(
        description=f"{data.name} ({data.root}), {data.image_size} pixels, {summary.row()}",
        training=summary.training,
        outputs=len(summary.classes),
        facts=summary.facts(),
        warnings=summary.warnings,
        notes=tuple(filter(None, (summary.note(), *summary.remarks))),
    )


def has_validation(data: DataConfig) -> bool:
    return class_folders.find_layout(Path(data.root), keep_test=data.fold is not None).validation is not None


FOLDER: Final = DataSource(
    open=open_splits,
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
