"""Reads the labels in arrays and in a user's own data set: classes, several labels per sample, or numbers.

`FORMATS` holds the LabelFormat of each task.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from entrypoint import list_some
from train.config.schema import DataConfig
from train.data import labels as table_labels
from train.data.labels import Int64Array
from train.data.sources.arrays import bad_data_failure
from train.tasks import AUTO, CLASSIFICATION, MULTI_LABEL, REGRESSION, TargetScale

NUMBER_NAME: Final = "number"  # of the only output; arrays do not name it
ItemLabel = int | float | list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelFormat:
    """How the labels of one task lie in arrays and items.

    expected: what each item of a user's own data set must return as its label, in words.
    read, names and scale raise Failure (DATA):
        read: (array, name of the file) -> labels as `SampleSource.labels` has them.
        names: (name of the file, claimed number, training labels, validation labels) -> the names of the outputs.
        strata: labels -> int64 [N]; a validation split takes the same share of each number.
        mismatch: (labels, number of outputs) -> what does not fit it, in words; None if they fit.
        from_item: a label of a user's item -> as `Tensor.tolist()` gives one of `labels`. Raises TypeError, ValueError.
        scale: (training labels, name) -> of numbers, their scale.
    """

    expected: str
    read: Callable[[Tensor, str], Tensor]
    names: Callable[[str, int | None, Tensor, Tensor | None], tuple[str, ...]]
    strata: Callable[[Tensor], Int64Array]
    mismatch: Callable[[Tensor, int], str | None]
    from_item: Callable[[Any], ItemLabel]
    scale: Callable[[Tensor, str], TargetScale | None] = lambda labels, name: None


def configured_task(data: DataConfig) -> str:
    """data.task; arrays and items have classes unless it says otherwise."""
    return CLASSIFICATION if data.task == AUTO else data.task


def configured_format(data: DataConfig) -> LabelFormat:
    """The format of data.task."""
    return FORMATS[configured_task(data)]


def describe_tensor(tensor: Tensor) -> str:
    """The dtype and shape, for messages."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def is_zero_or_one(labels: Tensor) -> bool:
    """Whether there are no other numbers."""
    return not labels.is_complex() and bool(((labels == 0) | (labels == 1)).all())


# Classes


def read_classes(labels: Tensor, name: str) -> Tensor:
    """Labels as int64 [N], from integers of any width, [N] or [N, 1].

    Raises:
        Failure: DATA, with the task that the labels look like.
    """
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1:
        fix = "save labels.argmax(1)" if flat.ndim == 2 else "save one label for each sample"
        if flat.ndim == 2 and is_zero_or_one(flat):
            fix += f" if each has one class; or set data.task={MULTI_LABEL} if it may have several"
        raise bad_data_failure(name, "labels have other axes than samples", f"labels {list(labels.shape)}", "[N]", fix)
    if flat.is_floating_point() or flat.is_complex() or flat.dtype == torch.bool:
        fix = "save labels.astype('int64')"
        if flat.is_floating_point():
            fix += f" if they are classes; or set data.task={REGRESSION} to predict the number"
        raise bad_data_failure(name, "labels are not integers", describe_tensor(labels), "integers", fix)
    flat = flat.to(torch.int64)
    if len(flat) and int(flat.min()) < 0:
        raise bad_data_failure(
            name, "a label is negative", f"{int(flat.min())}", "labels from 0 on", "number the classes from 0"
        )
    return flat


def name_classes(name: str, claimed: int | None, training: Tensor, validation: Tensor | None) -> tuple[str, ...]:
    """0, 1, 2, ...: `claimed` names, or if that is None, one for each number up to the highest label.

    A class without a training sample is refused as a mistake (labels that begin with 1), unless `claimed` is given.

    Raises:
        Failure: DATA.
    """
    count = max(int(labels.max()) for labels in (training, validation) if labels is not None and len(labels)) + 1
    if claimed is not None and count > claimed:
        fix = f"set data.classes to {count}, or leave it out"
        raise bad_data_failure(
            name, "a label is not below the number of classes", f"label {count - 1}", f"below {claimed}", fix
        )
    present = set(training.tolist())
    if claimed is None and len(present) < count:
        empty = islice((label for label in range(count) if label not in present), 5)
        what = f"{count - len(present)} of {count} classes have no training sample"
        fix = f"number the classes from 0 without gaps, or set data.classes to {count} if this is meant"
        raise bad_data_failure(name, what, f"no label {', '.join(map(str, empty))}", f"0..{count - 1}", fix)
    if (claimed or count) < 2:
        raise bad_data_failure(name, "there is only one class", "label 0 alone", "two classes or more")
    return tuple(map(str, range(claimed or count)))


# Several labels


def read_label_sets(labels: Tensor, name: str) -> Tensor:
    """0 or 1 for each label, float32 [N, K], from any type of numbers.

    Raises:
        Failure: DATA.
    """
    if labels.ndim != 2:
        fix = f"save 0 or 1 for each sample and label; or leave data.task={MULTI_LABEL} out if each has one class"
        raise bad_data_failure(name, "labels are no table of 0 and 1", describe_tensor(labels), "[N, K]", fix)
    if not is_zero_or_one(labels):
        others = labels[(labels != 0) & (labels != 1)]
        fix = "save (labels > 0.5).astype('uint8') if they are probabilities"
        raise bad_data_failure(name, "a label is neither 0 nor 1", f"{others[0].item():g}", "0 or 1", fix)
    return labels.float()


def name_label_sets(name: str, claimed: int | None, training: Tensor, validation: Tensor | None) -> tuple[str, ...]:
    """0, 1, 2, ... Raises Failure (DATA) for another number than claimed, and for a label without a training sample."""
    count = training.shape[1]
    if claimed is not None and claimed != count:
        fix = f"set data.classes to {count}, or leave it out"
        raise bad_data_failure(name, "there is another number of labels", f"{count}", f"{claimed}", fix)
    if validation is not None and validation.shape[1] != count:
        actual = f"{count} and {validation.shape[1]}"
        raise bad_data_failure(name, "training and validation have other numbers of labels", actual, "the same")
    empty = (training.sum(dim=0) == 0).nonzero().flatten().tolist()
    if empty:
        what = f"{len(empty)} of {count} labels have no training sample"
        raise bad_data_failure(
            name, what, f"only 0 in column {list_some(empty)}", "a 1 in each", "remove these columns"
        )
    return tuple(map(str, range(count)))


# Numbers


def read_numbers(labels: Tensor, name: str) -> Tensor:
    """float32 [N], from numbers of any type, [N] or [N, 1].

    Raises:
        Failure: DATA.
    """
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1 or flat.is_complex():
        fix = "save one number for each sample; a model with several numbers is not supported"
        fix += f". For 0 and 1 set data.task={MULTI_LABEL}" if labels.ndim == 2 and is_zero_or_one(labels) else ""
        raise bad_data_failure(name, "there is not one number for each sample", describe_tensor(labels), "[N]", fix)
    numbers = flat.float()
    if not numbers.isfinite().all():
        row = int(numbers.isfinite().int().argmin())
        fix = "replace or remove the sample"
        raise bad_data_failure(
            name, f"the number of sample {row} is not finite", f"{flat[row].item():g}", "finite numbers", fix
        )
    return numbers


def scale_numbers(training: Tensor, name: str) -> TargetScale:
    """Their mean and standard deviation. Raises Failure (DATA) if all are equal."""
    what = "there are no two different numbers to train on"
    return table_labels.number_scale(
        training.numpy(),
        lambda number: bad_data_failure(
            name, what, f"{len(training):,} times {number}", "different numbers", "look at the labels"
        ),
    )


def parse_label_set(label: Any) -> list[float]:
    """0 or 1 for each label of an item. Raises TypeError, ValueError."""
    values = torch.as_tensor(label.detach().cpu() if isinstance(label, Tensor) else np.asarray(label))
    if values.ndim != 1 or not is_zero_or_one(values):
        raise ValueError("it is no row of 0 and 1")
    row: list[float] = values.float().tolist()
    return row


def parse_number(label: Any) -> float:
    """The number of an item, as 32 bits hold it. Raises TypeError, ValueError."""
    number = float(np.float32(float(label)))
    if not math.isfinite(number):
        raise ValueError("it is no finite number")
    return number


CLASS_LABELS: Final = LabelFormat(
    expected="one integer for each image: the number of its class, from 0",
    read=read_classes,
    names=name_classes,
    strata=lambda labels: labels.numpy(),
    mismatch=lambda labels, outputs: None if int(labels.max()) < outputs else f"label {int(labels.max())}",
    from_item=operator.index,
)
LABEL_SETS: Final = LabelFormat(
    expected="a row of 0 and 1 for each image, as data.task says: one number for each label",
    read=read_label_sets,
    names=name_label_sets,
    strata=lambda labels: table_labels.strata_of_label_sets(labels.numpy()),
    mismatch=lambda labels, outputs: None if labels.shape[1] == outputs else f"{labels.shape[1]} labels",
    from_item=parse_label_set,
)
NUMBERS: Final = LabelFormat(
    expected="one finite number for each image, as data.task says",
    read=read_numbers,
    names=lambda name, claimed, training, validation: (NUMBER_NAME,),
    strata=lambda labels: table_labels.strata_of_numbers(labels.numpy()),
    mismatch=lambda labels, outputs: None if outputs == 1 else "one number for each sample",
    from_item=parse_number,
    scale=scale_numbers,
)
FORMATS: Final = {CLASSIFICATION: CLASS_LABELS, MULTI_LABEL: LABEL_SETS, REGRESSION: NUMBERS}
