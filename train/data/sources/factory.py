"""Holds the entry of `package.module:factory`: the user's own data, known only after it is opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from train.config.schema import DataConfig
from train.data.registry import DataSource, DataSummary
from train.tasks import AUTO, CLASSIFICATION, TASKS

if TYPE_CHECKING:
    from train.data.splits import DataSplits
    from train.distributed.shared_memory import HostRanks


def open_splits(data: DataConfig, host: HostRanks, cache_folder: Path | None) -> DataSplits:
    from train.data import custom  # torch

    return custom.open_custom(data)


def describe(data: DataConfig) -> DataSummary:
    task = CLASSIFICATION if data.task == AUTO else data.task
    return DataSummary(description=f"{data.name} (your own: known at the start)", task=task)


FACTORY: Final = DataSource(
    open=open_splits,
    count=lambda data: None,
    describe=describe,
    keys=frozenset({"root", "classes", "samples", "val_fraction", "cache", "color"}),
    origin="factory",
    tasks=tuple(TASKS),
    resizes=True,
)
