"""Makes what a task learns of raw labels: `ENCODERS` holds what is true of each task's labels, and all sources call it.

Readers know how names lie in a table's cells or in a shard's members, and arrays in a file; a task knows what these
names and numbers have to be. This module does not import torch, since `train check` reads the labels of tables and
shards. Arrays come as tensors, which need no import.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from entrypoint import Failure, list_some, pluralize
from train.config.schema import DataConfig
from train.files import bad_data_failure, one_line
from train.tasks import CLASSIFICATION, MULTI_LABEL, REGRESSION, TargetScale, configured_task, parse_number

if TYPE_CHECKING:
    from torch import Tensor

Int64Array = npt.NDArray[np.int64]
Values = npt.NDArray[Any]  # as `SampleSource.labels`, but as an array
RawLabel = str | Collection[str]  # as it is written: one name or number, or any number of names
ItemLabel = int | float | list[float]
MAX_LISTED_CLASSES: Final = 3
NUM_STRATA: Final = 10  # a validation split takes the same share of each tenth of the numbers
MIN_OTHER_NUMBERS: Final = 3  # fewer tell nothing of a number that is far from them
NUMBER_NAME: Final = "number"  # of the only output; arrays do not name it


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelEncoder:
    """What the labels of one task are, in each form in which a source has them.

    read, names and scale raise Failure (DATA).
    """

    # What each item of a user's own data set must return as its label, in words.
    expected: str
    # (labels as they are written, the number of each name, number of outputs) -> values; NaN for a text without number.
    encode: Callable[[Sequence[RawLabel], Mapping[str, int], int], Values]
    # (array, name of the file) -> labels as `SampleSource.labels` has them.
    read: Callable[[Tensor, str], Tensor]
    # (name of the file, claimed number, training labels, validation labels) -> the names of the outputs.
    names: Callable[[str, int | None, Tensor, Tensor | None], tuple[str, ...]]
    # Labels -> int64 [n]; a validation split takes the same share of each number.
    strata: Callable[[Tensor | Values], Int64Array]
    # (labels, number of outputs) -> what does not fit it, in words; None if they fit.
    mismatch: Callable[[Tensor, int], str | None]
    # A label of a user's item -> as `Tensor.tolist()` gives one of `labels`. Raises TypeError, ValueError.
    from_item: Callable[[Any], ItemLabel]
    # (training labels, what makes the Failure of the number that all of them are) -> of numbers, their scale.
    scale: Callable[[Tensor | Values, Callable[[str], Failure]], TargetScale | None] = lambda labels, refusal: None


def configured_encoder(data: DataConfig) -> LabelEncoder:
    """The encoder of data.task."""
    return ENCODERS[configured_task(data)]


def is_zero_or_one(labels: Tensor) -> bool:
    """Whether there are no other numbers."""
    return not labels.is_complex() and bool(((labels == 0) | (labels == 1)).all())


def describe_tensor(tensor: Tensor) -> str:
    """The dtype and shape, for messages."""
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _without_column(labels: Tensor) -> Tensor:
    """[N] for [N, 1], which programs that know tables only write."""
    return labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels


# Classes


def _encode_classes(labels: Sequence[RawLabel], numbers: Mapping[str, int], outputs: int) -> Int64Array:
    return np.fromiter((numbers[str(label)] for label in labels), np.int64, len(labels))


def _read_classes(labels: Tensor, name: str) -> Tensor:
    """Labels as int64 [N], from integers of any width, [N] or [N, 1].

    Raises:
        Failure: DATA, with the task that the labels look like.
    """
    flat = _without_column(labels)
    if flat.ndim != 1:
        fix = "save labels.argmax(1)" if flat.ndim == 2 else "save one label for each sample"
        if flat.ndim == 2 and is_zero_or_one(flat):
            fix += f" if each has one class; or set data.task={MULTI_LABEL} if it may have several"
        raise bad_data_failure(name, "labels have other axes than samples", f"labels {list(labels.shape)}", "[N]", fix)
    if flat.is_floating_point() or flat.is_complex() or str(flat.dtype) == "torch.bool":
        fix = "save labels.astype('int64')"
        if flat.is_floating_point():
            fix += f" if they are classes; or set data.task={REGRESSION} to predict the number"
        raise bad_data_failure(name, "labels are not integers", describe_tensor(labels), "integers", fix)
    flat = flat.long()
    if len(flat) and int(flat.min()) < 0:
        raise bad_data_failure(
            name, "a label is negative", f"{int(flat.min())}", "labels from 0 on", "number the classes from 0"
        )
    return flat


def _name_classes(name: str, claimed: int | None, training: Tensor, validation: Tensor | None) -> tuple[str, ...]:
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


def _encode_label_sets(labels: Sequence[RawLabel], numbers: Mapping[str, int], outputs: int) -> npt.NDArray[np.bool_]:
    """Which labels each sample has, bool [n, outputs]: an eighth of the memory that an index of int64 would need."""
    values = np.zeros((len(labels), outputs), bool)
    for row, label in enumerate(labels):
        values[row, [numbers[name] for name in ((label,) if isinstance(label, str) else label)]] = True
    return values


def _read_label_sets(labels: Tensor, name: str) -> Tensor:
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


def _name_label_sets(name: str, claimed: int | None, training: Tensor, validation: Tensor | None) -> tuple[str, ...]:
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


def label_set_strata(sets: Tensor | Values, rows: Int64Array | None = None) -> Int64Array:
    """The rarest label of each sample, so that rare ones are in both splits; samples without a label are a stratum too.

    sets: which labels each has, [n, labels]. rows: which of the sets each sample has, where each set is there once: an
    index knows them so, and those of a hundred million images would need gigabytes; None: all, in their order.
    """
    members = np.asarray(sets) > 0
    counts = members.sum(axis=0) if rows is None else np.bincount(rows, minlength=len(members)) @ members
    rarity = np.where(members, counts, np.inf)
    rarest: Int64Array = np.where(members.any(axis=1), rarity.argmin(axis=1), members.shape[1])
    return rarest if rows is None else rarest[rows]


def _parse_label_set(label: Any) -> list[float]:
    """0 or 1 for each label of an item. Raises TypeError, ValueError."""
    import torch  # only a process that reads a user's items comes here

    values = torch.as_tensor(label.detach().cpu() if isinstance(label, torch.Tensor) else np.asarray(label))
    if values.ndim != 1 or not is_zero_or_one(values):
        raise ValueError("it is no row of 0 and 1")
    row: list[float] = values.float().tolist()
    return row


# Numbers


def _encode_numbers(labels: Sequence[RawLabel], numbers: Mapping[str, int], outputs: int) -> npt.NDArray[np.float64]:
    parsed = (parse_number(str(label)) for label in labels)
    return np.fromiter((math.nan if number is None else number for number in parsed), np.float64, len(labels))


def _read_numbers(labels: Tensor, name: str) -> Tensor:
    """float32 [N], from numbers of any type, [N] or [N, 1].

    Raises:
        Failure: DATA.
    """
    flat = _without_column(labels)
    if flat.ndim != 1 or flat.is_complex():
        fix = "save one number for each sample; a model with several numbers is not supported"
        fix += f". For 0 and 1 set data.task={MULTI_LABEL}" if labels.ndim == 2 and is_zero_or_one(labels) else ""
        raise bad_data_failure(name, "there is not one number for each sample", describe_tensor(labels), "[N]", fix)
    values = flat.float()
    if not values.isfinite().all():
        row = int(values.isfinite().int().argmin())
        what, fix = f"the number of sample {row} is not finite", "replace or remove the sample"
        raise bad_data_failure(name, what, f"{flat[row].item():g}", "finite numbers", fix)
    return values


def _number_strata(numbers: Tensor | Values) -> Int64Array:
    """The tenth of the sorted numbers in which each one is."""
    ranks = np.argsort(np.argsort(np.asarray(numbers), kind="stable"), kind="stable")
    return ranks * NUM_STRATA // len(ranks)


def _parse_item_number(label: Any) -> float:
    """The number of an item, as 32 bits hold it. Raises TypeError, ValueError."""
    number = float(np.float32(float(label)))
    if not math.isfinite(number):
        raise ValueError("it is no finite number")
    return number


def _scale_numbers(training: Tensor | Values, refusal: Callable[[str], Failure]) -> TargetScale:
    """The mean and the standard deviation of the training's numbers.

    Raises:
        Failure: what `refusal` makes of the number, if all are equal.
    """
    numbers: list[float] = np.asarray(training).tolist()
    mean = math.fsum(numbers) / len(numbers)
    std = math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / len(numbers))
    if not std:
        raise refusal(f"{numbers[0]:g}")
    return TargetScale(mean=mean, std=std)


def one_number_failure(name: str, samples: int, number: str) -> Failure:
    """The Failure for an array or a user's items, of which all to train on have the same number."""
    what, fix = "there are no two different numbers to train on", "look at the labels"
    return bad_data_failure(name, what, f"{samples:,} times {number}", "different numbers", fix)


def missing_validation_warnings(
    task: str, classes: Sequence[str], training: Values, validation: Values
) -> tuple[str, ...]:
    """A warning of the classes or labels that no validation image has, where there are validation images."""
    if not len(validation) or task == REGRESSION:
        return ()
    counts = [
        np.bincount(part, minlength=len(classes)) if task == CLASSIFICATION else part.sum(axis=0, dtype=np.int64)
        for part in (training, validation)
    ]
    missed = [(one_line(name), count) for name, count, other in zip(classes, *counts, strict=True) if not other]
    if not missed:
        return ()
    fix = "fix: more images of them, or a larger data.val_fraction"
    if len(missed) == 1:
        text = f"class {missed[0][0]} has {pluralize(missed[0][1], 'image')}: none is used for validation. "
        return (text + fix.replace("them", "it"),)
    listed = list_some([f"{name} ({pluralize(count, 'image')})" for name, count in missed], MAX_LISTED_CLASSES)
    return (f"of {len(missed):,} classes no image is used for validation: {listed}. {fix}",)


def missing_number(labels: Values) -> tuple[float, tuple[float, float]] | None:
    """The number that probably stands for a missing value, and the lowest and the highest of the others; or None.

    It is the lowest or highest one, repeats, and is further from the others than these from each other; or it is the
    only negative one, and -1, -99, -999, ...
    """
    values, counts = np.unique(labels, return_counts=True)
    for end, others in ((0, values[1:]), (-1, values[:-1])):
        if counts[end] < 2 or len(others) < MIN_OTHER_NUMBERS:
            continue
        value = float(values[end])
        is_code = value < 0 <= others[0] and re.fullmatch("1|9+", f"{-value:g}")
        if is_code or abs(value - others[end]) > np.ptp(others):
            return value, (float(others[0]), float(others[-1]))
    return None


ENCODERS: Final[Mapping[str, LabelEncoder]] = {
    CLASSIFICATION: LabelEncoder(
        expected="one integer for each image: the number of its class, from 0",
        encode=_encode_classes,
        read=_read_classes,
        names=_name_classes,
        strata=np.asarray,
        mismatch=lambda labels, outputs: None if int(labels.max()) < outputs else f"label {int(labels.max())}",
        from_item=operator.index,
    ),
    MULTI_LABEL: LabelEncoder(
        expected="a row of 0 and 1 for each image, as data.task says: one number for each label",
        encode=_encode_label_sets,
        read=_read_label_sets,
        names=_name_label_sets,
        strata=label_set_strata,
        mismatch=lambda labels, outputs: None if labels.shape[1] == outputs else f"{labels.shape[1]} labels",
        from_item=_parse_label_set,
    ),
    REGRESSION: LabelEncoder(
        expected="one finite number for each image, as data.task says",
        encode=_encode_numbers,
        read=_read_numbers,
        names=lambda name, claimed, training, validation: (NUMBER_NAME,),
        strata=_number_strata,
        mismatch=lambda labels, outputs: None if outputs == 1 else "one number for each sample",
        from_item=_parse_item_number,
        scale=_scale_numbers,
    ),
}
