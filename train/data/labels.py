"""Makes labels of a table's cells: a class, several labels, or a number for each image.

Mistakes name the line of the table. This module does not import torch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import class_folders
from train.data.label_table import TRAINING, LabelTable, bad_table, list_lines
from train.files import one_line
from train.names import describe_look_alikes, read_name
from train.tasks import AUTO, CLASSIFICATION, MULTI_LABEL, REGRESSION, TASKS, TargetScale

Int64Array = npt.NDArray[np.int64]
SEPARATORS: Final = re.compile(r"[;|]")  # between the labels of one image
YES, NO = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no", "")  # cells of a label's own column, in any case
MAX_CLASS_NUMBERS: Final = 20  # more different whole numbers look like measurements, unless each has many images
MIN_IMAGES_PER_NUMBER: Final = 10
MAX_NUMBER: Final = float(np.finfo(np.float32).max)
NUM_STRATA: Final = 10  # a validation split takes the same share of each tenth of the numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLabels:
    """The labels of some rows of a table.

    classes: the names of the model's outputs. values: int64 [n], or as `SampleSource.labels` of another task.
    strata: int64 [n], from 0 without gaps: a validation split takes the same share of each number.
    """

    task: str
    classes: tuple[str, ...]
    values: npt.NDArray[Any]
    strata: Int64Array


def read_labels(table: LabelTable, rows: Sequence[int], data: DataConfig) -> TableLabels:
    """The labels of these rows, in the order of `LabelTable.rows_by_split`.

    Raises:
        Failure: DATA for cells that are no labels of the task; USAGE if it is unclear which task is meant.
    """
    task = find_task(table, rows, data)
    read: TableLabels = TASKS[task].load("labels")(table, rows, data)
    return read


def find_task(table: LabelTable, rows: Sequence[int], data: DataConfig) -> str:
    """data.task; for `auto` the task that the label column has. What could be two tasks is refused.

    Raises:
        Failure: USAGE, with the data.task to set.
    """
    name = table.label_name
    if table.label_columns:
        if data.task not in (AUTO, MULTI_LABEL):
            fix = f"set data.task={MULTI_LABEL}, or data.columns.label to one column"
            raise _unclear_task(table, f"data.task {data.task} takes one column of labels", f"{name}", fix)
        return MULTI_LABEL
    if data.task != AUTO:
        return data.task
    cells = [table.labels[row] for row in rows]
    if several := [row for row, cell in zip(rows, cells, strict=True) if SEPARATORS.search(cell)]:
        line = f"line {table.lines[several[0]]}: {one_line(table.labels[several[0]])}"
        fix = f"set data.task={MULTI_LABEL} if an image has several; or data.task={CLASSIFICATION}, one class each"
        raise _unclear_task(table, f"the column {name} holds ; or |: several labels of one image?", line, fix)
    if all(map(class_folders.is_image, cells)):
        line = f"line {table.lines[rows[0]]}: {one_line(cells[0])}"
        fix = "set data.columns.label to a column of classes; masks of pixels (segmentation) are not supported"
        raise _unclear_task(table, f"the column {name} holds image files", line, fix)
    if look_like_measurements(cells):
        sample = f"{len(set(cells)):,} different numbers in {len(cells):,} lines, such as {one_line(cells[0])}"
        fix = f"set data.task={REGRESSION} to predict the number; or data.task={CLASSIFICATION} if each is a class"
        raise _unclear_task(table, f"the column {name} holds numbers: to be predicted, or classes?", sample, fix)
    return CLASSIFICATION


def look_like_measurements(cells: Sequence[str]) -> bool:
    """Whether all are numbers, and some no whole ones or so many that most classes would have few images."""
    numbers = [parse_number(cell) for cell in cells]
    values = {number for number in numbers if number is not None}
    if None in numbers or len(values) < 2:
        return False
    many = len(values) > MAX_CLASS_NUMBERS and len(cells) < MIN_IMAGES_PER_NUMBER * len(values)
    return many or not all(value.is_integer() for value in values)


def parse_number(cell: str) -> float | None:
    """The number in a cell; None if there is none, or none that 32 bits hold."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if abs(number) <= MAX_NUMBER else None


def _unclear_task(table: LabelTable, what: str, sample: str, fix: str) -> Failure:
    return Failure(f"{what} ({table.file})", found=sample, fix=fix, code=ExitCode.USAGE)


def read_classes(table: LabelTable, rows: Sequence[int], data: DataConfig) -> TableLabels:
    """One class for each image, in alphabetical order.

    Raises:
        Failure: DATA for an empty cell, fewer than two classes, another number than data.classes, and for a class
            without a training image.
    """
    _refuse_empty_labels(table, rows)
    labels = [table.labels[row] for row in rows]
    classes = tuple(sorted(set(labels)))
    if len(classes) < 2:
        actual = f"{len(rows):,} images of {one_line(classes[0])}"
        raise bad_table(table.file, "has fewer than two classes", actual, "add images of another class")
    _refuse_untrained_labels(table, rows, [{label} for label in labels], "class")
    _refuse_wrong_class_count(data, classes)
    index = {name: number for number, name in enumerate(classes)}
    values = np.fromiter((index[name] for name in labels), np.int64, len(rows))
    return TableLabels(task=CLASSIFICATION, classes=classes, values=values, strata=values)


def read_label_sets(table: LabelTable, rows: Sequence[int], data: DataConfig) -> TableLabels:
    """Any number of labels for each image: names with `;` or `|` between them, or a column of 0 and 1 for each.

    The strata are those of each image's rarest label, so that rare labels are in both splits.

    Raises:
        Failure: DATA for a column without a label, a cell that is neither 0 nor 1, another number than data.classes,
            and for a label that no training image has.
    """
    if table.label_columns:
        classes = table.label_columns
        sets = [_named_columns(table, row) for row in rows]
    else:
        sets = [{name for cell in SEPARATORS.split(table.labels[row]) if (name := read_name(cell))} for row in rows]
        classes = tuple(sorted(set().union(*sets)))
    if not any(sets):
        actual = f"{len(rows):,} lines without one"
        raise bad_table(table.file, f"has no label in {table.label_name}", actual, "give images labels")
    _refuse_untrained_labels(table, rows, sets, "label")
    _refuse_wrong_class_count(data, classes)
    index = {name: number for number, name in enumerate(classes)}
    values = np.zeros((len(rows), len(classes)), np.float32)
    for number, names in enumerate(sets):
        values[number, [index[name] for name in names]] = 1
    return TableLabels(task=MULTI_LABEL, classes=classes, values=values, strata=strata_of_label_sets(values))


def strata_of_label_sets(values: npt.NDArray[np.float32]) -> Int64Array:
    """The rarest label of each image; images without a label are a stratum too. values: 0 or 1 [n, labels]."""
    rarity = np.where(values > 0, values.sum(axis=0), np.inf)
    return _without_gaps(np.where(values.any(axis=1), rarity.argmin(axis=1), values.shape[1]))


def strata_of_numbers(values: npt.NDArray[np.float32]) -> Int64Array:
    """The tenth of the sorted numbers in which each one is."""
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable")
    return _without_gaps(ranks * NUM_STRATA // len(values))


def _named_columns(table: LabelTable, row: int) -> set[str]:
    """The columns that hold 1 in this row."""
    names = set()
    for name, cells in zip(table.label_columns, table.label_cells, strict=True):
        cell = cells[row].lower()
        if cell in YES:
            names.add(name)
        elif cell not in NO:
            actual = f"line {table.lines[row]}: {one_line(cells[row])} in the column {name}"
            raise bad_table(table.file, "has a label that is neither 0 nor 1", actual, "write 1 for yes, and 0 for no")
    return names


def read_numbers(table: LabelTable, rows: Sequence[int], data: DataConfig) -> TableLabels:
    """A number for each image. The strata are the tenths of the sorted numbers.

    Raises:
        Failure: DATA for a cell that is no finite number, and if all are equal.
    """
    _refuse_empty_labels(table, rows)
    numbers = [parse_number(table.labels[row]) for row in rows]
    if None in numbers:
        row = rows[numbers.index(None)]
        comma = " (with a decimal point, no comma)" if "," in table.labels[row] else ""
        fix = f"write a number{comma}, or remove the line; for names of classes set data.task={CLASSIFICATION}"
        actual = f"line {table.lines[row]}: {one_line(table.labels[row])}"
        raise bad_table(table.file, f"has a cell in {table.label_name} that is no number", actual, fix)
    values = np.array(numbers, np.float32)
    training = values[: len(table.rows_of(TRAINING))]
    if len(np.unique(training)) < 2:
        actual = f"{len(rows):,} times {numbers[0]:g}"
        raise bad_table(table.file, "has no two different numbers to train on", actual, "give images their own number")
    return TableLabels(task=REGRESSION, classes=(table.label_name,), values=values, strata=strata_of_numbers(values))


def target_scale(training: npt.NDArray[np.float32], table: LabelTable) -> TargetScale:
    """The scale of the training's numbers. Raises Failure: DATA if all are equal."""
    scale = number_scale(training)
    if scale is None:
        fix = "give the training images different numbers, or another data.val_fraction"
        raise bad_table(table.file, "has one number in all training rows", f"{training[0]:g}", fix)
    return scale


def number_scale(training: npt.NDArray[np.float32]) -> TargetScale | None:
    """The mean and the standard deviation of the numbers; None if all are equal."""
    numbers = [float(number) for number in training]
    mean = math.fsum(numbers) / len(numbers)
    std = math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / len(numbers))
    return TargetScale(mean=mean, std=std) if std else None


def missing_validation_warnings(
    task: str, classes: Sequence[str], training: npt.NDArray[Any], validation: npt.NDArray[Any]
) -> tuple[str, ...]:
    """A warning of the classes or labels that no validation image has, where there are validation images.

    training, validation: as `SampleSource.labels`.
    """
    if not len(validation) or task == REGRESSION:
        return ()
    counts = [
        np.bincount(part, minlength=len(classes)) if part.ndim == 1 else part.sum(axis=0, dtype=np.int64)
        for part in (training, validation)
    ]
    return class_folders.missing_validation_warnings(classes, *(count.tolist() for count in counts))


def _without_gaps(numbers: npt.NDArray[Any]) -> Int64Array:
    """The numbers, renamed to 0, 1, 2, ... in their order."""
    return np.unique(numbers, return_inverse=True)[1].astype(np.int64)


def _refuse_empty_labels(table: LabelTable, rows: Sequence[int]) -> None:
    empty = [table.lines[row] for row in rows if not table.labels[row]]
    if empty:
        counted = "an empty cell" if len(empty) == 1 else f"{len(empty):,} empty cells"
        fix = f"fill the column {table.label_name} there, or remove these lines"
        raise bad_table(table.file, f"has {counted} in the column {table.label_name}", list_lines(empty), fix)


def _refuse_untrained_labels(table: LabelTable, rows: Sequence[int], sets: Sequence[set[str]], noun: str) -> None:
    """Refuse a class or label that no training row has: the model would never learn it."""
    if table.splits is None:
        return
    is_training = {*table.rows_of(TRAINING)}
    trained: set[str] = set().union(*(names for row, names in zip(rows, sets, strict=True) if row in is_training))
    untrained = [(row, names - trained) for row, names in zip(rows, sets, strict=True) if names - trained]
    if untrained:
        name = min(untrained[0][1])
        lines = [table.lines[row] for row, names in untrained if name in names]
        what = f"has a {noun} that no {TRAINING} row has"
        fix = "add training images of it, or remove these lines"
        alike = describe_look_alikes((name, *trained), "; ")
        raise bad_table(table.file, what, f"{one_line(name)}: {list_lines(lines)}{alike}", fix)


def _refuse_wrong_class_count(data: DataConfig, classes: Sequence[str]) -> None:
    """Refuse a data.classes that is not the table's number. Its default claims nothing."""
    if data.classes not in (len(classes), DataConfig().classes):
        raise Failure(
            "data.classes is not the number of classes in the table",
            found=f"{len(classes)} classes in {data.root}",
            expected=f"data.classes: {data.classes}",
            fix=f"set data.classes to {len(classes)}, or leave it out",
            code=ExitCode.DATA,
        )
