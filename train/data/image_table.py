"""Opens the images that a table lists, and splits off a validation set if the table has no split column.

The validation split is the same in every run: it does not depend on `run.seed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from train.config import batches
from train.config.schema import DataConfig
from train.data import grouping, image_folder, label_table, labels, path_list
from train.data.image_folder import ImageFileSource, ImageFolderSplits
from train.data.label_table import TRAINING, VALIDATION, LabelTable
from train.data.splits import DataSplits
from train.tasks import REGRESSION


def open_image_table(data: DataConfig) -> DataSplits:
    """Both splits. Raises Failure: as `label_table.read_table`, `labels.read_labels` and `grouping.group_names`."""
    table = label_table.read_table(data)
    rows = [*table.rows_of(TRAINING), *table.rows_of(VALIDATION)]
    read = labels.read_labels(table, rows, data)
    is_validation, notes = choose_validation_rows(table, rows, read.strata, data)
    files = ImageFileSource(_pack(table, rows), torch.from_numpy(read.values), data.image_size)
    listed = ImageFolderSplits(
        training=image_folder.select_files(files, ~is_validation),
        validation=image_folder.select_files(files, is_validation),
        classes=read.classes,
        notes=(*notes, *filter(None, [table.test_note])),
        warnings=labels.missing_validation_warnings(read, is_validation),
    )
    weights = None
    if table.weights is not None:
        training_weights = np.array([table.weights[row] for row in rows], np.float64)[~is_validation]
        weights = normalize_weights(training_weights, table)
    target = labels.target_scale(read.values[~is_validation], table) if read.task == REGRESSION else None
    return replace(image_folder.image_file_splits(data, listed, weights), task=read.task, target=target)


def choose_validation_rows(
    table: LabelTable, rows: Sequence[int], strata: npt.NDArray[np.int64], data: DataConfig
) -> tuple[npt.NDArray[np.bool_], tuple[str, ...]]:
    """Which of the rows are for validation, bool [n], and notes about that.

    Raises:
        Failure: DATA as `grouping.group_names`, `grouping.refuse_leak` and `grouping.validation_mask_by_group`.
    """
    groups = group_names(table, rows, data)
    if table.has_validation:
        is_validation = np.arange(len(rows)) >= len(table.rows_of(TRAINING))
        if groups is not None:
            training = len(table.rows_of(TRAINING))
            grouping.refuse_leak(groups[:training], groups[training:])
        return is_validation, ()
    count = batches.num_validation_samples(len(rows), data.val_fraction)
    if groups is None:
        return image_folder.validation_mask(strata, count), ()
    is_validation = grouping.validation_mask_by_group(strata, groups, count)
    return is_validation, (grouping.describe_split(groups, is_validation, count),)


def group_names(table: LabelTable, rows: Sequence[int], data: DataConfig) -> list[str] | None:
    """The group of each row: of the column, or what data.group finds in the paths; None without groups."""
    if data.group is not None:
        above = f"{table.images}/"
        return grouping.group_names((table.paths[row].removeprefix(above) for row in rows), data.group)
    return None if table.groups is None else [table.groups[row] for row in rows]


def _pack(table: LabelTable, rows: Sequence[int]) -> path_list.PackedPaths:
    """The paths, relative to the folder of the images if all are below it, so that it may move."""
    above = f"{table.images}/"
    if not all(table.paths[row].startswith(above) for row in rows):
        above = ""
    return path_list.pack_paths((table.paths[row] for row in rows), above)


def normalize_weights(weights: npt.NDArray[np.float64], table: LabelTable) -> torch.Tensor:
    """The weights of the training images, float32 [n], 1 on average, so that the loss keeps its scale.

    Raises:
        Failure: DATA if all are 0.
    """
    if not weights.any():
        fix = "give training images a weight above 0, or leave the column out"
        raise label_table.bad_table(table.file, "gives no training image a weight", "all weights are 0", fix)
    return torch.from_numpy((weights / weights.mean()).astype(np.float32))
