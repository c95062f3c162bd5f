"""Opens the images that a table lists, and splits those that no split column assigns.

The splits are the same in every run: they do not depend on `run.seed`. This module does not import torch: `train check`
lists images too.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from train.config.schema import DataConfig
from train.data import image_lists, label_table, labels, partition, split_checks
from train.data.image_lists import ImageList, ImageLists
from train.data.label_table import TEST, VALIDATION, LabelTable, bad_table
from train.data.partition import Partition, partition_samples
from train.tasks import TASKS
from train.tasks.labels import FORMATS, number_scale

if TYPE_CHECKING:
    from train.data.splits import DataSplits


def open_image_table(data: DataConfig, *_: object) -> DataSplits:
    """All splits. Raises Failure: as `list_table`."""
    from train.data import splits  # torch

    lists = list_table(data)
    return replace(splits.open_image_lists(data, lists), notes=(*lists.notes, *lists.split_notes))


def list_table(data: DataConfig) -> ImageLists:
    """The images of all splits.

    Raises:
        Failure: as `label_table.read_table`, `labels.read_labels` and `partition_rows`; DATA if all training images
            have one number, or a weight of 0.
    """
    table = label_table.read_table(data)
    read = labels.read_labels(table, data)
    parts = partition_rows(table, FORMATS[read.task].strata(read.values), data)
    above = f"{table.images}/"  # left out of the paths if all are below it, so that the folder may move
    if not all(path.startswith(above) for path in table.paths):
        above = ""
    images = ImageList(paths=image_lists.pack_paths(table.paths, above), labels=read.values)
    training, validation = images.select(parts.training), images.select(parts.validation)
    weights = None
    if table.weights is not None:
        raw = np.array(table.weights, np.float64)[parts.training]
        if not raw.any():
            fix = "give training images a weight above 0, or leave the column out"
            raise bad_table(table.file, "gives no training image a weight", "all weights are 0", fix)
        weights = (raw / raw.mean()).astype(np.float32)  # 1 on average, so that the loss keeps its scale
    missing = labels.missing_validation_warnings(read.task, read.classes, training.labels, validation.labels)
    target = None
    if not TASKS[read.task].has_classes:
        fix = "give the training images different numbers, or another data.val_fraction"
        target = number_scale(
            training.labels,
            lambda number: bad_table(table.file, "has one number in all training rows", number, fix),
        )
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


def partition_rows(table: LabelTable, strata: npt.NDArray[np.int64], data: DataConfig) -> Partition:
    """The split of each row.

    Raises:
        Failure: DATA as `partition.group_names`, `partition.refuse_leak` and `partition.partition_samples`; USAGE for a
            split that the table names and a key asks for.
    """
    training, validation, test = table.counts
    split_checks.refuse_second_splits(
        data,
        validation=f"the {VALIDATION} rows of {table.file}" if validation else None,
        test=f"the {TEST} rows of {table.file}" if test else None,
    )
    groups = group_names(table, data)
    if groups is not None:
        names, ends = ("training", "validation", "test"), np.cumsum(table.counts)
        of_split = {name: groups[end - n : end] for name, end, n in zip(names, ends, table.counts, strict=True)}
        for first, second in combinations(names, 2):
            partition.refuse_leak(of_split[first], of_split[second], f"{first} and {second}")
    parts = partition_samples(
        strata[:training],
        data,
        groups=None if groups is None else groups[:training],
        has_validation=validation > 0,
    )
    rest = np.array(table.splits[training:], str)
    return Partition(
        validation=np.append(parts.validation, rest == VALIDATION),
        test=np.append(parts.test, rest == TEST),
        notes=parts.notes,
    )


def group_names(table: LabelTable, data: DataConfig) -> list[str] | None:
    """The group of each row: of the column, or what data.group finds in the paths; None without groups."""
    if data.group is None:
        return table.groups
    above = f"{table.images}/"
    return partition.group_names((path.removeprefix(above) for path in table.paths), data.group)
