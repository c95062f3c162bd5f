"""Opens the images that a table lists, and splits those that no split column assigns.

The splits are the same in every run: they do not depend on `run.seed`. This module does not import torch: `train check`
lists images too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from train.config.schema import DataConfig
from train.data import image_lists, label_table, labels, partition, split_checks
from train.data.image_lists import ImageList, ImageLists
from train.data.label_table import TEST, TRAINING, VALIDATION, LabelTable
from train.data.partition import Partition, partition_samples
from train.tasks import TASKS

if TYPE_CHECKING:
    from train.data.splits import DataSplits


def open_image_table(data: DataConfig, *_: object) -> DataSplits:
    """All splits. Raises Failure: as `list_table`."""
    from train.data import splits  # torch

    lists = list_table(data)
    return replace(splits.open_image_lists(data, lists), notes=(*lists.notes, *lists.split_notes))


def list_table(data: DataConfig) -> ImageLists:
    """The images of all splits. Raises Failure: as `label_table.read_table`, `labels.read_labels`, `partition_rows`."""
    table = label_table.read_table(data)
    rows = table.rows_by_split()
    read = labels.read_labels(table, rows, data)
    parts = partition_rows(table, rows, read.strata, data)
    images = ImageList(paths=_pack(table, rows), labels=read.values)
    training, validation = images.select(parts.training), images.select(parts.validation)
    weights = None
    if table.weights is not None:
        weights = normalize_weights(np.array([table.weights[row] for row in rows], np.float64)[parts.training], table)
    missing = labels.missing_validation_warnings(read.task, read.classes, training.labels, validation.labels)
    target = None
    if not TASKS[read.task].has_classes:
        target = labels.number_scale(training.labels, partial(labels.one_number_failure, table))
    return ImageLists(
        training=training,
        validation=validation,
        test=images.select(parts.test) if parts.test.any() else None,
        classes=read.classes,
        notes=(*table.notes, *read.notes),
        split_notes=parts.notes,
        warnings=(*table.warnings, *read.warnings, *missing),
        task=read.task,
        target=target,
        weights=weights,
    )


def partition_rows(
    table: LabelTable, rows: Sequence[int], strata: npt.NDArray[np.int64], data: DataConfig
) -> Partition:
    """The split of each of the rows, which are those of `LabelTable.rows_by_split`.

    Raises:
        Failure: DATA as `partition.group_names`, `partition.refuse_leaks` and `partition.partition_samples`; USAGE for
            a split that the table names and a key asks for.
    """
    counts = [len(table.rows_of(split)) for split in (TRAINING, VALIDATION, TEST)]
    if counts[1]:
        split_checks.refuse_second_validation_split(data, f"the {VALIDATION} rows of {table.file}")
    if counts[2]:
        split_checks.refuse_second_test_split(data, f"the {TEST} rows of {table.file}")
    groups = group_names(table, rows, data)
    training, ends = counts[0], np.cumsum(counts)
    if groups is not None:
        names = ("training", "validation", "test")
        partition.refuse_leaks({name: groups[end - n : end] for name, end, n in zip(names, ends, counts, strict=True)})
    parts = partition_samples(
        strata[:training],
        data,
        groups=None if groups is None else groups[:training],
        has_validation=table.has_validation,
    )
    own = np.repeat([TRAINING, VALIDATION, TEST], counts)
    return Partition(
        validation=np.append(parts.validation, own[training:] == VALIDATION),
        test=np.append(parts.test, own[training:] == TEST),
        notes=parts.notes,
    )


def group_names(table: LabelTable, rows: Sequence[int], data: DataConfig) -> list[str] | None:
    """The group of each row: of the column, or what data.group finds in the paths; None without groups."""
    if data.group is not None:
        above = f"{table.images}/"
        return partition.group_names((table.paths[row].removeprefix(above) for row in rows), data.group)
    return None if table.groups is None else [table.groups[row] for row in rows]


def _pack(table: LabelTable, rows: Sequence[int]) -> image_lists.PackedPaths:
    """The paths, relative to the folder of the images if all are below it, so that it may move."""
    above = f"{table.images}/"
    if not all(table.paths[row].startswith(above) for row in rows):
        above = ""
    return image_lists.pack_paths((table.paths[row] for row in rows), above)


def normalize_weights(weights: npt.NDArray[np.float64], table: LabelTable) -> npt.NDArray[np.float32]:
    """The weights of the training images, float32 [n], 1 on average, so that the loss keeps its scale.

    Raises:
        Failure: DATA if all are 0.
    """
    if not weights.any():
        fix = "give training images a weight above 0, or leave the column out"
        raise label_table.bad_table(table.file, "gives no training image a weight", "all weights are 0", fix)
    normalized: npt.NDArray[np.float32] = (weights / weights.mean()).astype(np.float32)
    return normalized
