"""Holds the entry of `synthetic`: outlines that are drawn from the sample's number."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from train.config.batches import count_splits
from train.config.schema import DataConfig
from train.data import long_tail
from train.data.registry import DataSource, DataSummary, describe_test

if TYPE_CHECKING:
    from train.data.splits import DataSplits
    from train.distributed.shared_memory import HostRanks


def open_splits(data: DataConfig, host: HostRanks, cache_folder: Path | None) -> DataSplits:
    from train.data import synthetic  # torch

    return synthetic.open_synthetic(data)


def count(data: DataConfig) -> int:
    return count_splits(data.samples, data).training


def describe(data: DataConfig) -> DataSummary:
    tail = f", the rarest {data.imbalance:g} times rarer than the commonest" if data.imbalance != 1 else ""
    clips = f"clips of {data.frames} frames, " if data.frames else ""
    text = f"synthetic ({data.samples:,} samples, {data.classes} classes{tail}), {clips}{data.image_size} pixels"
    sizes = count_splits(data.samples, data)
    return DataSummary(description=text + describe_test(sizes.test), training=sizes.training, outputs=data.classes)


def check(data: DataConfig) -> None:
    if data.imbalance != 1:
        sizes = count_splits(data.samples, data)
        for samples in (sizes.training, sizes.validation, *([sizes.test] if sizes.test else [])):
            long_tail.long_tail_counts(samples, data.classes, data.imbalance)


SYNTHETIC: Final = DataSource(
    open=open_splits,
    count=count,
    describe=describe,
    check=check,
    keys=frozenset({"frames", "classes", "samples", "imbalance", "val_fraction", "test_fraction"}),
    origin="computed",
    channels=3,
    has_class_names=True,
)
