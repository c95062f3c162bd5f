"""Holds the entries of the downloadable data sets, CIFAR-10, CIFAR-100, MNIST and Fashion-MNIST, and reads them.

Pickles are loaded only after their hashes have been compared with the published ones. torch is imported where they are
read: every task of a job loads the entries.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from entrypoint import ExitCode, Failure, shell_command
from train.config.batches import SplitCounts, count_splits
from train.config.schema import DataConfig
from train.data import download
from train.data.registry import DataSource, inapplicable_key_failure
from train.data.shape import Shape, height_and_width

if TYPE_CHECKING:
    from torch import Tensor

    from train.data.splits import DataSplits

    ImagesAndLabels = tuple[Tensor, Tensor]  # uint8 [N, height, width, channels], int64 [N]

NUM_VALIDATION: Final = 10_000  # images of each published test set
READ_ERRORS: Final = (AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError)

# data.name -> the class in torchvision.datasets.
CLASS_NAMES: Final = {
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "mnist": "MNIST",
    "fashion_mnist": "FashionMNIST",
}


def published_source(*, training: int, classes: int, channels: int) -> DataSource:
    """The entry of a data set whose files `download.PUBLISHED_ARCHIVES` lists.

    Args:
        training: images of the published training set.
    """

    def count(data: DataConfig) -> SplitCounts:
        if not data.download:
            download.refuse_missing_files(data)
        return replace(count_splits(training, data, has_validation=True), validation=NUM_VALIDATION)

    def check(data: DataConfig) -> None:
        if data.classes not in (DataConfig().classes, classes):
            raise inapplicable_key_failure(data, "classes", "leave data.classes out: it is what was published")
        height, width = height_and_width(data.image_size)
        if height != width:
            fix = f"set data.image_size to one number: {height} or {width}"
            raise inapplicable_key_failure(data, "image_size", fix)

    return DataSource(
        reader="sources.published:open_published_set",
        count=count,
        check=check,
        keys=frozenset({"root", "download", "mirror", "test_fraction"}),
        origin="files",
        channels=channels,
        classes=classes,
        has_class_names=True,
    )


CIFAR10: Final = published_source(training=50_000, classes=10, channels=3)
CIFAR100: Final = published_source(training=50_000, classes=100, channels=3)
MNIST: Final = published_source(training=60_000, classes=10, channels=1)
FASHION_MNIST: Final = published_source(training=60_000, classes=10, channels=1)


def open_published_set(data: DataConfig, *unused: object) -> DataSplits:
    """The published training set, and the published test set for validation, resized to data.image_size.

    data.test_fraction takes the test split from the published training set.

    Raises:
        Failure: NO_INPUT, naming a missing file; DATA, naming a file that is not the published one.
    """
    from torchvision import datasets  # takes a second, and only these sources need it

    from train.data import arrays  # torch
    from train.data.splits import DataSplits, split_off

    download.refuse_missing_files(data)

    dataset = getattr(datasets, CLASS_NAMES[data.name])
    read = (
        _read_cifar if issubclass(dataset, datasets.CIFAR10) else _read_mnist
    )  # the base classes of CIFAR100 and FashionMNIST
    *splits, classes = read(dataset, data)
    size, _ = height_and_width(data.image_size)  # the source's entry refuses any other than a square
    training, validation = (arrays.array_source(*split, data.name, size) for split in splits)
    training, _, test, _ = split_off(training, data, training.labels.numpy(), validation=validation)
    channels = training.pixels.shape[-1]
    return DataSplits(
        training=training,
        validation=validation,
        test=test,
        classes=tuple(classes),
        shape=Shape(channels=channels, size=(size, size)),
        has_own_validation=True,
        mirror=data.name != "mnist",  # a mirrored digit is mostly no digit
    )


def _read_cifar(dataset_class: Any, data: DataConfig) -> tuple[ImagesAndLabels, ImagesAndLabels, list[str]]:
    """Read both splits. torchvision compares the hash of every file before it unpickles one."""
    import torch

    root = Path(data.root)
    try:
        with warnings.catch_warnings(action="ignore"):  # the pickles were written by an old numpy
            splits = [dataset_class(root, train=train, download=False) for train in (True, False)]
    except RuntimeError as error:
        (archive,) = download.PUBLISHED_ARCHIVES[data.name]
        changed = next((file for file in archive.files if not download.is_intact(file, root)), archive.files[0])
        raise _not_published_failure(root / changed.path, f"another md5 than {changed.md5}") from error
    training, validation = ((torch.from_numpy(split.data), torch.tensor(split.targets)) for split in splits)
    return training, validation, splits[0].classes


def _read_mnist(dataset_class: Any, data: DataConfig) -> tuple[ImagesAndLabels, ImagesAndLabels, list[str]]:
    """Read both splits file by file: torchvision's class would prefer an older cache in the same folder."""
    folder = Path(data.root) / dataset_class.__name__ / "raw"
    training, validation = (_read_idx_pair(folder, name) for name in ("train", "t10k"))
    return training, validation, dataset_class.classes


def _read_idx_pair(folder: Path, name: str) -> ImagesAndLabels:
    from torchvision.datasets.mnist import read_image_file, read_label_file

    images = _read_idx_file(read_image_file, folder / f"{name}-images-idx3-ubyte")
    labels = _read_idx_file(read_label_file, path := folder / f"{name}-labels-idx1-ubyte")
    if len(images) != len(labels):
        raise _not_published_failure(path, f"{len(labels)} labels for {len(images)} images")
    if len(labels) == 0 or int(labels.max()) > 9:
        raise _not_published_failure(path, f"labels up to {int(labels.max())}" if len(labels) else "no labels")
    return images[..., None], labels


def _read_idx_file(reader: Callable[[str], Tensor], path: Path) -> Tensor:
    try:
        return reader(str(path))
    except READ_ERRORS as error:
        raise _not_published_failure(path, f"{type(error).__name__}: {error}".removesuffix(": ")) from error


def _not_published_failure(path: Path, actual: str) -> Failure:
    return Failure(
        f"{path.name} is not the published file",
        found=f"{path}: {actual}",
        fix=f"delete it, and fetch it again with `{shell_command('train data fetch')}` (nothing of it was used)",
        code=ExitCode.DATA,
    )
