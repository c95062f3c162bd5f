"""Holds the entries of the downloadable data sets: CIFAR-10, CIFAR-100, MNIST and Fashion-MNIST."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from train.config.batches import count_splits
from train.config.schema import DataConfig
from train.data import download
from train.data.registry import DataSource, DataSummary, describe_test, inapplicable_key_failure
from train.data.shape import height_and_width

if TYPE_CHECKING:
    from train.data.splits import DataSplits
    from train.distributed.shared_memory import HostRanks


def published_source(class_name: str, *, training: int, classes: int, channels: int, mirror: bool = True) -> DataSource:
    """The entry of a data set whose files `download.PUBLISHED_ARCHIVES` lists.

    Args:
        class_name: in torchvision.datasets. training: images of the published training set. mirror: as in `DataSplits`.
    """

    def open_splits(data: DataConfig, host: HostRanks, cache_folder: Path | None) -> DataSplits:
        from train.data import torchvision_sets  # torch

        return torchvision_sets.open_torchvision_set(data, class_name, mirror=mirror)

    def count(data: DataConfig) -> int:
        if not data.download:
            download.refuse_missing_files(data)
        return count_splits(training, data, has_validation=True).training

    def describe(data: DataConfig) -> DataSummary:
        missing = data.download and not download.files_exist(data.name, Path(data.root))
        where = f"not yet in {data.root}: fetched at the start" if missing else data.root
        sizes = count_splits(training, data, has_validation=True)
        description = f"{data.name} ({where}), {data.image_size} pixels{describe_test(sizes.test)}"
        return DataSummary(description=description, training=sizes.training, outputs=classes)

    def check(data: DataConfig) -> None:
        if data.classes not in (DataConfig().classes, classes):
            raise inapplicable_key_failure(data, "classes", "leave data.classes out: it is what was published")
        height, width = height_and_width(data.image_size)
        if height != width:
            fix = f"set data.image_size to one number: {height} or {width}"
            raise inapplicable_key_failure(data, "image_size", fix)

    return DataSource(
        open=open_splits,
        count=count,
        describe=describe,
        check=check,
        has_validation=lambda data: True,
        keys=frozenset({"root", "download", "mirror", "test_fraction"}),
        origin="files",
        channels=channels,
        has_class_names=True,
    )


CIFAR10: Final = published_source("CIFAR10", training=50_000, classes=10, channels=3)
CIFAR100: Final = published_source("CIFAR100", training=50_000, classes=100, channels=3)
# A mirrored digit is mostly no digit.
MNIST: Final = published_source("MNIST", training=60_000, classes=10, channels=1, mirror=False)
FASHION_MNIST: Final = published_source("FashionMNIST", training=60_000, classes=10, channels=1)
