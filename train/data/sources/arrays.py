"""Holds the entries of `npz` and `tensor`: array files, whose headers give the number of samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from train.config.batches import count_splits
from train.config.schema import DataConfig
from train.data.registry import DataSource, DataSummary, describe_test
from train.tasks import AUTO, CLASSIFICATION, TASKS, task_fact

if TYPE_CHECKING:
    from train.data.splits import DataSplits
    from train.distributed.shared_memory import HostRanks


def open_npz(data: DataConfig, host: HostRanks, cache_folder: Path | None) -> DataSplits:
    from train.data import arrays  # torch

    return arrays.open_arrays(data, channels_first=False)


def open_tensor(data: DataConfig, host: HostRanks, cache_folder: Path | None) -> DataSplits:
    from train.data import arrays  # torch

    return arrays.open_arrays(data, channels_first=True)


def count(data: DataConfig) -> int | None:
    return describe(data).training


def describe(data: DataConfig) -> DataSummary:
    from train.data import array_files  # numpy

    task = CLASSIFICATION if data.task == AUTO else data.task
    summary = array_files.read_array_summary(data)
    if summary is None:  # a .pt file, whose header is a pickle
        return DataSummary(description=f"{data.name} ({data.root}), its arrays are known at the start", task=task)
    images = summary.shape[0] if summary.shape else 0
    sizes = count_splits(images, data, has_validation=summary.validation is not None)
    validation = sizes.validation if summary.validation is None else summary.validation
    test = sizes.test if summary.test is None else summary.test
    facts = {"training": sizes.training, "held_out": validation}  # by the names that checkpoints use
    return DataSummary(
        description=f"{data.name} ({data.root}), images {list(summary.shape)}{describe_test(test)}",
        training=sizes.training,
        facts=facts | task_fact(task),
        task=task,
    )


def has_validation(data: DataConfig) -> bool:
    from train.data import array_files  # numpy

    summary = array_files.read_array_summary(data)
    return summary is not None and summary.validation is not None


KEYS: Final = frozenset({"root", "val_fraction", "test_fraction", "fold"})

NPZ: Final = DataSource(
    open=open_npz,
    count=count,
    describe=describe,
    has_validation=has_validation,
    keys=KEYS,
    origin="files",
    tasks=tuple(TASKS),
)
TENSOR: Final = replace(NPZ, open=open_tensor)
