"""Makes labels of a table's cells: a class for each image.

Mistakes name the line of the table. This module does not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data.label_table import TRAINING, VALIDATION, LabelTable, bad_table, list_lines
from train.files import one_line

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLabels:
    """The labels of some rows of a table.

    classes: the names of the model's outputs. values: int64 [n]. strata: int64 [n], from 0 without gaps: a validation
    split takes the same share of each number.
    """

    classes: tuple[str, ...]
    values: npt.NDArray[Any]
    strata: Int64Array


def read_labels(table: LabelTable, rows: Sequence[int]) -> TableLabels:
    """The labels of these rows, which are all that is trained on or used for validation.

    Raises:
        Failure: DATA for fewer than two classes, and for a class without a training image.
    """
    labels = [table.labels[row] for row in rows]
    classes = tuple(sorted(set(labels)))
    if len(classes) < 2:
        actual = f"{len(rows):,} images of {one_line(classes[0])}"
        raise bad_table(table.file, "has fewer than two classes", actual, "add images of another class")
    if table.splits is not None:
        _refuse_untrained_classes(table, rows)
    index = {name: number for number, name in enumerate(classes)}
    values = np.fromiter((index[name] for name in labels), np.int64, len(rows))
    return TableLabels(classes=classes, values=values, strata=values)


def _refuse_untrained_classes(table: LabelTable, rows: Sequence[int]) -> None:
    trained = {table.labels[row] for row in table.rows_of(TRAINING)}
    untrained = [row for row in rows if table.labels[row] not in trained]
    if untrained:
        name = table.labels[untrained[0]]
        lines = [table.lines[row] for row in untrained if table.labels[row] == name]
        what = f"has a class that is only in the {VALIDATION} rows"
        fix = "add training images of it, or remove these lines"
        raise bad_table(table.file, what, f"{one_line(name)}: {list_lines(lines)}", fix)


def refuse_wrong_class_count(data: DataConfig, classes: Sequence[str]) -> None:
    """Refuse a data.classes that is not the table's number. Its default claims nothing. Raises Failure: DATA."""
    if data.classes not in (len(classes), DataConfig().classes):
        raise Failure(
            "data.classes is not the number of classes in the table",
            found=f"{len(classes)} classes in {data.root}",
            expected=f"data.classes: {data.classes}",
            fix=f"set data.classes to {len(classes)}, or leave it out",
            code=ExitCode.DATA,
        )
