"""Describes the data for `train check` before anything is decoded.

It reads the config, the folders and the headers of array files, and counts images in one walk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from entrypoint import ExitCode, Failure
from train.config import schema
from train.config.batches import num_validation_samples
from train.config.schema import DataConfig
from train.data import array_files, class_folders, download, long_tail
from train.files import shorten_name


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDataset:
    """A published data set: its training images, and its classes."""

    training: int
    classes: int


PUBLISHED_DATASETS: Final = {
    "cifar10": PublishedDataset(training=50_000, classes=10),
    "cifar100": PublishedDataset(training=50_000, classes=100),
    "mnist": PublishedDataset(training=60_000, classes=10),
    "fashion_mnist": PublishedDataset(training=60_000, classes=10),
}


def refuse_inapplicable_keys(data: DataConfig) -> None:
    """Refuse keys that belong to another kind of data, and numbers that cannot be.

    Raises:
        Failure: USAGE.
    """
    if data.name != schema.SYNTHETIC_SOURCE:
        _refuse_synthetic_key("data.imbalance", data.imbalance, DataConfig().imbalance, data)
        _refuse_synthetic_key("data.frames", data.frames, DataConfig().frames, data)
    elif data.imbalance != 1:
        for side in _synthetic_split_sizes(data):
            long_tail.long_tail_counts(side, data.classes, data.imbalance)
    if data.name in PUBLISHED_DATASETS and data.classes not in (
        DataConfig().classes,
        PUBLISHED_DATASETS[data.name].classes,
    ):
        raise _inapplicable_key_failure(
            data, f"data.classes: {data.classes}", "leave data.classes out: it is what was published"
        )


def count_training_samples(data: DataConfig) -> int | None:
    """How many are trained on, of any kind but folders; None where only the start of a run can tell.

    Raises:
        Failure: NO_INPUT for files that are not there, DATA for broken ones.
    """
    if data.name == schema.SYNTHETIC_SOURCE:
        return _synthetic_split_sizes(data)[0]
    if data.name in PUBLISHED_DATASETS:
        if not data.download:
            download.refuse_missing_files(data)
        return PUBLISHED_DATASETS[data.name].training
    return array_split_sizes(data).get("training")


def array_split_sizes(data: DataConfig) -> dict[str, int]:
    """Of arrays what a run that goes on compares with what it began with, as far as their headers tell: both sides.

    Raises:
        Failure: as `samples`.
    """
    if (
        data.name not in schema.ARRAY_SOURCES
        or (seen := array_files.read_array_summary(Path(data.root), data.name)) is None
    ):
        return {}
    found = seen.shape[0] if seen.shape else 0
    if not seen.held_out:
        apart = num_validation_samples(found, data.val_fraction)
        return {"training": found - apart, "held_out": apart}
    return {"training": found} | ({} if seen.beside is None else {"held_out": seen.beside})


def describe_data(data: DataConfig) -> str:
    """The data in words, for `train check`."""
    if data.name == schema.SYNTHETIC_SOURCE:
        tail = f", the rarest {data.imbalance:g} times rarer than the commonest" if data.imbalance != 1 else ""
        clips = f"clips of {data.frames} frames, " if data.frames else ""
        return f"synthetic ({data.samples:,} samples, {data.classes} classes{tail}), {clips}{data.image_size} pixels"
    if data.name in schema.ARRAY_SOURCES:
        seen = array_files.read_array_summary(Path(data.root), data.name)
        shape = f"images {list(seen.shape)}" if seen else "its arrays are known at the start"
        return f"{data.name} ({data.root}), {shape}"
    if schema.is_factory(data.name):
        return f"{data.name} (your own: known at the start)"
    if data.name in PUBLISHED_DATASETS and data.download and not download.files_exist(data.name, Path(data.root)):
        return f"{data.name} (not yet in {data.root}: fetched at the start), {data.image_size} pixels"
    return f"{data.name} ({data.root}), {data.image_size} pixels"


def _synthetic_split_sizes(data: DataConfig) -> tuple[int, int]:
    """Training and held-out samples of the embedded data."""
    count = num_validation_samples(data.samples, data.val_fraction)
    return data.samples - count, count


def _refuse_synthetic_key(key: str, value: object, default: object, data: DataConfig) -> None:
    if value != default:
        raise _inapplicable_key_failure(
            data, f"{key}: {value}", f"leave {key} out, or set data.name to {schema.SYNTHETIC_SOURCE}"
        )


def _inapplicable_key_failure(data: DataConfig, found: str, fix: str) -> Failure:
    what = f"{found.partition(':')[0]} does not go with data.name: {data.name}"
    return Failure(what, found=found, fix=fix, code=ExitCode.USAGE)


MAX_LISTED_CLASSES: Final = 5  # names


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFolderSummary:
    """Images on both sides, by ending how many files are not read, and what looks like a slip.

    aside: in words, the folders that are not read.
    """

    classes: tuple[str, ...]
    training: int
    held_out: int
    unread: Mapping[str, int]
    warnings: tuple[str, ...] = ()
    aside: str | None = None

    def row(self) -> str:
        """The images in words."""
        names = ", ".join(map(shorten_name, self.classes[:MAX_LISTED_CLASSES])) + (
            ", ..." if len(self.classes) > MAX_LISTED_CLASSES else ""
        )
        images = f"{self.training + self.held_out:,} images in {len(self.classes):,} classes ({names})"
        return f"{images}: {self.training:,} to train on, {self.held_out:,} held out"

    def note(self) -> str | None:
        """The other files in words; None where there are none."""
        return class_folders.describe_unread_files(self.unread)

    def facts(self) -> dict[str, Any]:
        """What a run that goes on compares with what it began with."""
        return {"classes": [*self.classes], "training": self.training, "held_out": self.held_out}


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
    if layout.held_out is not None:
        training, rest = images, class_folders.count_images(layout.held_out, layout.classes, unread)
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
        held_out=rest,
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
