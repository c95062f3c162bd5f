"""Lists the labelled images in class folders, and splits off a validation set if there is none.

Unread files, misplaced folders and classes that are too small are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from train.config.schema import DataConfig
from train.data import class_folders, grouping, path_list
from train.data.folder_listing import ListingCache
from train.data.labels import missing_validation_warnings
from train.data.partition import partition_samples
from train.data.path_list import PackedPaths
from train.data.preprocessing import configured_preprocessing
from train.data.shape import COLOR_CHANNELS, ImageSize, Shape, height_and_width
from train.data.split_checks import find_layout, refuse_wrong_class_count
from train.data.splits import DataSplits, ImageFileSource
from train.distributed.shared_memory import HostRanks
from train.tasks import CLASSIFICATION

SampleIndices = npt.NDArray[np.int64]
NO_CACHE: Final = ListingCache()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFolderSplits:
    """The splits, the names of the classes, and notes and warnings about the splits. test: None if there is none."""

    training: ImageFileSource
    validation: ImageFileSource
    test: ImageFileSource | None
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def open_image_folder(data: DataConfig, host: HostRanks, cache_folder: Path | None) -> DataSplits:
    """All splits. The first rank of each machine lists the folder, and its ranks share the memory of the names.

    cache_folder: as `registry.open_splits`.

    Raises:
        Failure: as `list_splits`, `HostRanks.first_shared` and `image_file_splits`.
    """
    folder = None if cache_folder is None else cache_folder / "listings"
    cache = ListingCache(folder=folder, is_writer=host.rank == 0)
    outline, arrays = host.first_shared(lambda: _separate_arrays(list_splits(data, cache)))
    remaining = iter(arrays)  # in the order of the splits
    listed = _convert_splits(outline, lambda files: _with_arrays(files, *islice(remaining, 4)))
    return image_file_splits(data, listed)


def _separate_arrays(listed: ImageFolderSplits) -> tuple[ImageFolderSplits, list[npt.NDArray[Any]]]:
    """The same splits with paths and labels of length 0, and their arrays: letters, starts, lengths, labels of each."""
    arrays = list[npt.NDArray[Any]]()

    def separate(files: ImageFileSource) -> ImageFileSource:
        paths = path_list.as_packed_paths(files.paths)
        arrays.extend((paths.letters, paths.starts, paths.lengths, files.labels.numpy()))
        return replace(files, paths=path_list.pack_paths([], paths.above), labels=files.labels[:0].clone())

    return _convert_splits(listed, separate), arrays


def _with_arrays(
    files: ImageFileSource,
    letters: npt.NDArray[np.uint8],
    starts: npt.NDArray[np.int64],
    lengths: npt.NDArray[np.int32],
    labels: npt.NDArray[np.int64],
) -> ImageFileSource:
    above = path_list.as_packed_paths(files.paths).above
    return replace(files, paths=PackedPaths(above, letters, starts, lengths), labels=torch.from_numpy(labels))


def _convert_splits(
    listed: ImageFolderSplits, convert: Callable[[ImageFileSource], ImageFileSource]
) -> ImageFolderSplits:
    return replace(
        listed,
        training=convert(listed.training),
        validation=convert(listed.validation),
        test=None if listed.test is None else convert(listed.test),
    )


def image_file_splits(data: DataConfig, listed: ImageFolderSplits, weights: Tensor | None = None) -> DataSplits:
    """The splits of listed image files. weights: as in `DataSplits`."""
    preprocessing, channels = configured_preprocessing(data), COLOR_CHANNELS[data.color]
    listed = _convert_splits(listed, lambda files: replace(files, preprocessing=preprocessing, channels=channels))
    return DataSplits(
        training=listed.training,
        validation=listed.validation,
        test=listed.test,
        classes=listed.classes,
        shape=Shape(channels=channels, size=height_and_width(data.image_size)),
        notes=listed.notes,
        warnings=listed.warnings,
        weights=weights,
    )


def list_splits(data: DataConfig, cache: ListingCache = NO_CACHE) -> ImageFolderSplits:
    """List all files of data.root, and split off what has no folder: validation images, and test images if asked for.

    cache: of listings, by the folder of class folders.

    Raises:
        Failure: NO_INPUT for missing folders and classes without images, DATA for another number of classes and for
            groups that cannot be kept in one split, USAGE for a split that has a folder and is asked for by a key.
    """
    layout = find_layout(data)
    refuse_wrong_class_count(data, len(layout.classes), "class folders", str(layout.training))
    classes, size = layout.classes, data.image_size
    unread, inside = Counter[str](), {name: set[str]() for name in classes}
    training = _list_files(layout.training, classes, size, cache, unread, inside)
    class_folders.count_files_outside_classes(Path(data.root), layout, unread)
    validation = None if layout.validation is None else _list_files(layout.validation, classes, size, cache, unread, {})
    test = None if layout.test is None else _list_test_files(layout.test, classes, size, cache, unread)
    groups = None if data.group is None else _group_names(training, data)
    if groups is not None:
        _refuse_leaks(groups, validation, test, data)
    warnings = class_folders.split_folder_warnings(inside)
    labels = training.labels.numpy()
    partition = partition_samples(labels, data, groups=groups, has_validation=validation is not None)
    if partition.test.any():
        test = select_files(training, partition.test)
    if validation is None:
        validation = select_files(training, partition.validation)
        of_splits = labels[partition.training], labels[partition.validation]
        warnings = (*warnings, *missing_validation_warnings(CLASSIFICATION, classes, *of_splits))
    if not partition.training.all():
        training = select_files(training, partition.training)
    messages = (
        class_folders.describe_unread_files(unread),
        class_folders.describe_ignored_folders(layout),
        class_folders.describe_test_as_validation(layout),
    )
    return ImageFolderSplits(
        training=training,
        validation=validation,
        test=test,
        classes=classes,
        notes=(*partition.notes, *filter(None, messages)),
        warnings=warnings,
    )


def _refuse_leaks(
    groups: list[str], validation: ImageFileSource | None, test: ImageFileSource | None, data: DataConfig
) -> None:
    """Refuse a group that is in two folders. Raises Failure (DATA)."""
    of_validation = [] if validation is None else _group_names(validation, data)
    grouping.refuse_leak(groups, of_validation)
    if test is not None:
        of_test = _group_names(test, data)
        grouping.refuse_leak(groups, of_test, "training and test")
        grouping.refuse_leak(of_validation, of_test, "validation and test")


def _group_names(files: ImageFileSource, data: DataConfig) -> list[str]:
    """The groups, searched in the paths below the folder of class folders, so that no folder above can match."""
    return grouping.group_names(path_list.as_packed_paths(files.paths).names(), data.group or "")


def _list_files(
    above: Path,
    classes: tuple[str, ...],
    size: ImageSize,
    cache: ListingCache,
    unread: Counter[str],
    inside: Mapping[str, set[str]],
) -> ImageFileSource:
    paths_by_class = class_folders.class_paths(above)
    names = [paths_by_class.get(name, above / name).name for name in classes]
    listing = cache.list_images(above, names)
    if not all(listing.counts):
        class_folders.count_images(above, classes)  # names the empty ones
    unread.update(listing.unread)
    for name, folders in zip(names, inside.values(), strict=False):
        folders.update(listing.inside[name])
    paths = path_list.from_lengths(str(above / "_")[:-1], listing.letters, listing.lengths)
    return ImageFileSource(paths, torch.from_numpy(np.repeat(np.arange(len(classes)), listing.counts)), size)


def _list_test_files(
    above: Path, classes: tuple[str, ...], size: ImageSize, cache: ListingCache, unread: Counter[str]
) -> ImageFileSource:
    """The files of a folder that may lack classes, with the labels of the training's classes."""
    of_test = class_folders.class_names(above)
    files = _list_files(above, of_test, size, cache, unread, {})
    numbers = torch.tensor([classes.index(name) for name in of_test])
    return replace(files, labels=numbers[files.labels])


def select_files(files: ImageFileSource, chosen: npt.NDArray[np.bool_]) -> ImageFileSource:
    """The files where `chosen` (bool [count]) is true."""
    return replace(
        files,
        paths=path_list.as_packed_paths(files.paths).part(chosen),
        labels=files.labels[torch.from_numpy(chosen)],
    )
