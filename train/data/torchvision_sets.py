"""Reads the data sets that torchvision publishes: CIFAR-10, CIFAR-100, MNIST and Fashion-MNIST.

Pickles are loaded only after their hashes have been compared with the published ones.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from entrypoint import ExitCode, Failure, shell_command
from train.config.schema import DataConfig
from train.data import arrays, download
from train.data.shape import Shape, height_and_width
from train.data.splits import DataSplits

READ_ERRORS: Final = (AssertionError, IndexError, KeyError, RuntimeError, TypeError, ValueError)

ImagesAndLabels = tuple[Tensor, Tensor]  # uint8 [N, height, width, channels], int64 [N]


def open_torchvision_set(data: DataConfig, class_name: str, *, mirror: bool) -> DataSplits:
    """The published training set, and the published test set for validation, resized to data.image_size.

    data.test_fraction takes the test split from the published training set.

    Args:
        class_name: in torchvision.datasets. mirror: as in `DataSplits`.

    Raises:
        Failure: NO_INPUT, naming a missing file; DATA, naming a file that is not the published one.
    """
    download.refuse_missing_files(data)
    from torchvision import datasets  # takes a second, and only this source needs it

    dataset = getattr(datasets, class_name)
    read = (
        _read_cifar if issubclass(dataset, datasets.CIFAR10) else _read_mnist
    )  # the base classes of CIFAR100 and FashionMNIST
    *splits, classes = read(dataset, Path(data.root))
    size, _ = height_and_width(data.image_size)  # the source's entry refuses any other than a square
    training, validation = (arrays.array_source(*split, data.name, size) for split in splits)
    test = None
    if data.test_fraction:
        training, _, test = arrays.split_array(training, data, has_validation=True)
    channels = training.pixels.shape[-1]
    return DataSplits(
        training=training,
        validation=validation,
        test=test,
        classes=tuple(classes),
        shape=Shape(channels=channels, size=(size, size)),
        mirror=mirror,
    )


def _read_cifar(dataset_class: Any, root: Path) -> tuple[ImagesAndLabels, ImagesAndLabels, list[str]]:
    """Read both splits. torchvision compares the hash of every file before it unpickles one."""
    try:
        with warnings.catch_warnings(action="ignore"):  # the pickles were written by an old numpy
            splits = [dataset_class(root, train=train, download=False) for train in (True, False)]
    except RuntimeError as error:
        raise _changed_file_failure(dataset_class, root) from error
    training, validation = ((torch.from_numpy(split.data), torch.tensor(split.targets)) for split in splits)
    return training, validation, splits[0].classes


def _changed_file_failure(dataset_class: Any, root: Path) -> Failure:
    """The Failure for the first file whose hash is not the published one."""
    from torchvision.datasets.utils import check_integrity

    hashes = [
        *dataset_class.train_list,
        *dataset_class.test_list,
        (dataset_class.meta["filename"], dataset_class.meta["md5"]),
    ]
    files = ((root / dataset_class.base_folder / name, md5) for name, md5 in hashes)
    path, md5 = next(((path, md5) for path, md5 in files if not check_integrity(path, md5)), (root, "?"))
    return _not_published_failure(path, f"another md5 than {md5}")


def _read_mnist(dataset_class: Any, root: Path) -> tuple[ImagesAndLabels, ImagesAndLabels, list[str]]:
    """Read both splits file by file: torchvision's class would prefer an older cache in the same folder."""
    folder = root / dataset_class.__name__ / "raw"
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
