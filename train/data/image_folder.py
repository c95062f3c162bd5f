"""Lists the labelled images in class folders, and splits off a validation set if there is none.

The validation split has the same share of every class, and the same samples in every run: it does
not depend on `run.seed`. Unread files, misplaced folders and classes that are too small are reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entrypoint import ExitCode, Failure
from train import rng
from train.config import batches
from train.config.schema import DataConfig
from train.data import class_folders, decode, grouping, path_list
from train.data.boxes import CropDraws
from train.data.preprocessing import DEFAULT_PREPROCESSING, Preprocessing, configured_preprocessing
from train.data.shape import Shape
from train.data.splits import DataSplits


def validation_mask(labels: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.bool_]:
    """Which samples are for validation, bool [n]: `count` of them, the same share of every class.

    Not keyed by run.seed: runs with different seeds are evaluated on the same images.
    """
    order = rng.permutation(len(labels), rng.SPLIT)
    share = np.empty(len(labels))
    for label in np.unique(labels):
        members = order[labels[order] == label]
        share[members] = (np.arange(len(members)) + 0.5) / len(members)
    chosen = np.zeros(len(labels), bool)
    chosen[np.argsort(share, kind="stable")[:count]] = True
    return chosen


SampleIndices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ImageFileSource:
    """Image files and their classes. paths: `PackedPaths`, or any sequence from a user's factory."""

    paths: Sequence[str]
    labels: Tensor
    size: int
    preprocessing: Preprocessing = DEFAULT_PREPROCESSING

    def read(self, samples: SampleIndices) -> Tensor:
        """Decode them, uint8 [n, size, size, 3].

        Raises:
            Failure: DATA for a damaged image, NO_INPUT for a file that is gone.
        """
        pixels = np.empty((len(samples), self.size, self.size, 3), np.uint8)
        for index, sample in enumerate(samples):
            pixels[index] = decode.decode_image(
                Path(str(self.paths[sample])), self.size, int(sample), self.preprocessing
            )
        return torch.from_numpy(pixels)

    def read_cropped(self, samples: SampleIndices, draws: CropDraws) -> Tensor:
        """Decode whole images and cut the drawn boxes out of them, uint8 [n, size, size, 3]. Raises as `read`."""
        pixels = np.empty((len(samples), self.size, self.size, 3), np.uint8)
        for index, sample in enumerate(samples):
            path = Path(str(self.paths[sample]))
            pixels[index] = decode.decode_crop(
                path, self.size, int(sample), partial(draws.box, index), self.preprocessing
            )
        return torch.from_numpy(pixels)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFolderSplits:
    """Both splits, the names of the classes, and notes and warnings about the split."""

    training: ImageFileSource
    validation: ImageFileSource
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def open_image_folder(data: DataConfig) -> DataSplits:
    """Both splits. Raises Failure: as `list_splits`."""
    listed = list_splits(data)
    preprocessing = configured_preprocessing(data)
    return DataSplits(
        training=replace(listed.training, preprocessing=preprocessing),
        validation=replace(listed.validation, preprocessing=preprocessing),
        classes=listed.classes,
        shape=Shape(channels=3, size=(data.image_size, data.image_size)),
        notes=listed.notes,
        warnings=(
            *listed.warnings,
            *decode.bit_depth_warnings(decode.highest_values(listed.training.paths), f"data.root {data.root}"),
        ),
    )


def list_splits(data: DataConfig) -> ImageFolderSplits:
    """List all files of data.root, and split them if there is no validation folder.

    Raises:
        Failure: NO_INPUT for missing folders and classes without images, DATA for another number of classes and for
            groups that cannot be kept in one split.
    """
    layout = class_folders.find_layout(Path(data.root))
    _refuse_wrong_class_count(data, layout)
    unread, inside = Counter[str](), {name: set[str]() for name in layout.classes}
    training = _list_files(layout.training, layout.classes, data.image_size, unread, inside)
    class_folders.count_files_outside_classes(Path(data.root), layout, unread)
    if layout.validation is not None:
        validation = _list_files(layout.validation, layout.classes, data.image_size, unread, {})
        if data.group is not None:
            grouping.refuse_leak(_group_names(training, data), _group_names(validation, data))
        return _image_folder_splits(layout, training, validation, unread, class_folders.split_folder_warnings(inside))
    is_validation, notes = _choose_validation_files(training, data)
    validation, training = _select_files(training, is_validation), _select_files(training, ~is_validation)
    warnings = class_folders.split_folder_warnings(inside)
    if data.val_fraction > 0:
        counts_by_split = (
            np.bincount(split.labels.numpy(), minlength=len(layout.classes)) for split in (training, validation)
        )
        warnings = (
            *warnings,
            *class_folders.missing_validation_warnings(
                layout.classes, *(counts.tolist() for counts in counts_by_split)
            ),
        )
    return _image_folder_splits(layout, training, validation, unread, warnings, notes)


def _image_folder_splits(
    layout: class_folders.FolderLayout,
    training: ImageFileSource,
    validation: ImageFileSource,
    unread: Counter[str],
    warnings: tuple[str, ...],
    notes: tuple[str, ...] = (),
) -> ImageFolderSplits:
    messages = (class_folders.describe_unread_files(unread), class_folders.describe_ignored_folders(layout))
    return ImageFolderSplits(
        training=training,
        validation=validation,
        classes=layout.classes,
        notes=(*notes, *filter(None, messages)),
        warnings=warnings,
    )


def _choose_validation_files(files: ImageFileSource, data: DataConfig) -> tuple[npt.NDArray[np.bool_], tuple[str, ...]]:
    """Which files are for validation, and notes about that."""
    labels = files.labels.numpy()
    count = batches.num_validation_samples(len(labels), data.val_fraction)
    if data.group is None:
        return validation_mask(labels, count), ()
    groups = _group_names(files, data)
    is_validation = grouping.validation_mask_by_group(labels, groups, count)
    return is_validation, (grouping.describe_split(groups, is_validation, count),)


def _group_names(files: ImageFileSource, data: DataConfig) -> list[str]:
    """The groups, searched in the paths below the folder of class folders, so that no folder above can match."""
    return grouping.group_names(path_list.as_packed_paths(files.paths).names(), data.group or "")


def _list_files(
    above: Path, classes: tuple[str, ...], size: int, unread: Counter[str], inside: Mapping[str, set[str]]
) -> ImageFileSource:
    counts: list[int] = []

    def each() -> Iterator[str]:
        for name in classes:
            counts.append(0)
            for path in class_folders.image_files(above / name, unread, inside.get(name)):
                counts[-1] += 1
                yield str(path)

    listed = path_list.pack_paths(each(), str(above / "_")[:-1])
    if not all(counts):
        class_folders.count_images(above, classes)  # names the empty ones
    return ImageFileSource(listed, torch.from_numpy(np.repeat(np.arange(len(classes)), counts)), size)


def _select_files(files: ImageFileSource, chosen: npt.NDArray[np.bool_]) -> ImageFileSource:
    return ImageFileSource(
        path_list.as_packed_paths(files.paths).part(chosen), files.labels[torch.from_numpy(chosen)], files.size
    )


def _refuse_wrong_class_count(data: DataConfig, layout: class_folders.FolderLayout) -> None:
    """Refuse a data.classes that is not the number of class folders. Its default claims nothing."""
    if data.classes not in (len(layout.classes), DataConfig().classes):
        raise Failure(
            "data.classes is not the number of class folders",
            found=f"{len(layout.classes)} folders in {layout.training}",
            expected=f"data.classes: {data.classes}",
            fix=f"set data.classes to {len(layout.classes)}, or leave it out",
            code=ExitCode.DATA,
        )
