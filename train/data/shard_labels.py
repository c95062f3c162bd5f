"""Reads the labels of images in tar shards, and keeps each in the eight bytes that an index has for it.

A class is kept as its number, a number to predict as the bits of its float64, and several labels as the number of a set
of labels. This module does not import torch.
"""

from __future__ import annotations

import os
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from entrypoint import ExitCode, Failure, parse_json, shell_command
from train import files
from train.data.shards.order import Int64Array
from train.names import describe_look_alikes, normalize_name, read_name
from train.tasks import AUTO, CLASSIFICATION, MAX_NUMBER, MULTI_LABEL, REGRESSION, parse_number
from train.tasks.labels import FORMATS, label_set_strata

LABEL_SUFFIXES: Final = (".cls", ".json", ".txt")  # the first that is there counts
LABEL_KEYS: Final = ("label", "labels", "cls", "class", "target")  # of a .json
MAX_CLASSES: Final = 1_000_000  # as data.classes
# From so many classes on, at least one in so many needs an image: else the numbers are those of another list.
MIN_SPARSE: Final = 1000
MAX_SPARSITY: Final = 10
MAX_DIGITS: Final = 20  # of a class number
MAX_SHOWN: Final = 60  # characters of a label in a message
REPEATED: Final = object()
CLASSES_FILE: Final = "classes.txt"  # a class name on each line, for labels that are numbers
GROUP_KEY: Final = "group"  # of a .json: images of one group (a video, a patient) stay in one split
NO_NAME_CHARACTERS: Final = frozenset("\0\n\r")
Label = str | tuple[str, ...]  # as it is written: one, or any number of them
Annotation = tuple[Label | None, str | None]
UInt8Array = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelKind:
    """What the labels of an index are.

    classes: the names of the model's outputs. sets: of several labels per image, which of them each set has: bits,
    uint8 [sets, (classes + 7) // 8].
    """

    task: str
    classes: tuple[str, ...]
    sets: UInt8Array | None = None

    def values(self, column: Int64Array) -> npt.NDArray[Any]:
        """The labels of images as `SampleSource.labels`, from the `label` of their entries."""
        if self.sets is not None:
            return np.unpackbits(self.sets[column], axis=1, count=len(self.classes)).astype(np.float32)
        if self.task == REGRESSION:
            return np.ascontiguousarray(column).view(np.float64).astype(np.float32)
        return column.astype(np.int16 if len(self.classes) <= np.iinfo(np.int16).max else np.int64)

    def allows(self, column: Int64Array) -> npt.NDArray[np.bool_]:
        """Whether each `label` of entries is one of these labels, bool [n]."""
        if self.task == REGRESSION:
            return np.abs(np.ascontiguousarray(column).view(np.float64)) <= MAX_NUMBER
        return (column >= 0) & (column < len(self.classes if self.sets is None else self.sets))

    def strata(self, column: Int64Array) -> Int64Array:
        """A number for each image: a split takes the same share of each."""
        if self.sets is not None:
            return label_set_strata(np.unpackbits(self.sets, axis=1, count=len(self.classes)), column)
        return FORMATS[self.task].strata(self.values(column))


def parse_annotation(suffix: str, text: str) -> Annotation:
    """The label in a member with this one of LABEL_SUFFIXES, and the group of the image; None for what is not there.

    Raises:
        ValueError: the label is empty, or has several lines; its key is there twice; or its number is not finite or too
            large.
    """
    label, group = _parse_json(text) if suffix == ".json" else (read_name(text), None)
    for name in (label,) if isinstance(label, str) else label or ():
        if not name or not NO_NAME_CHARACTERS.isdisjoint(name):
            raise ValueError("a label has several lines or a zero byte" if name else "the label is empty")
    return label, group


def _mark_repeated_labels(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs; REPEATED as the value of a label's or a group's key that is there twice."""
    content = dict(pairs)
    if len(content) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        content |= {key: REPEATED for key in (*LABEL_KEYS, GROUP_KEY) if counts[key] > 1}
    return content


def _parse_json(text: str) -> Annotation:
    try:
        content = parse_json(text, _mark_repeated_labels)
    except ValueError:
        return None, None
    if not isinstance(content, dict):
        return None, None
    key = next((key for key in LABEL_KEYS if key in content), "")
    value, group = content.get(key), content.get(GROUP_KEY)
    if REPEATED in (value, group):
        raise ValueError(f"the key {key if value is REPEATED else GROUP_KEY!r} is there twice")
    if isinstance(value, float) and parse_number(str(value)) is None:
        raise ValueError(f"the number of {key!r} is {value}")
    label: Label | None = read_name(str(value)) if isinstance(value, int | float | str) else None
    if isinstance(value, list):
        if any(type(each) not in (int, str) for each in value):
            raise ValueError(f"the list of {key!r} is no list of classes: write their names, or the places of the ones")
        label = tuple(sorted(read_name(str(each)) for each in value))
    return label, None if group is None else read_name(str(group))


def number_labels(folder: Path, labels: Sequence[Label], task: str) -> tuple[LabelKind, Int64Array]:
    """What these different labels are, and what an index keeps of each, int64 [labels].

    task: as data.task. By itself several labels in any sample, or a number with a fraction, tell the task.

    Raises:
        Failure: DATA for labels of two kinds, of another task, or not in classes.txt.
    """
    task = _infer_task(folder, labels) if task == AUTO else task
    if task == REGRESSION:
        values = FORMATS[task].encode(labels, {}, 1)
        if np.isnan(values).any():
            bad = labels[int(np.isnan(values).argmax())]
            raise _kind_failure(folder, "a label is no number", _quote(bad), "data.task=classification")
        lines = _read_class_names(folder) or []
        name = lines[0] if len(lines) == 1 else "target"
        return LabelKind(task=task, classes=(name,)), values.view(np.int64)
    texts = sorted({text for label in labels for text in ((label,) if isinstance(label, str) else label)})
    rows = [label for label in labels if len({*label}) < len(label) or [*labels] == [("0", "1")]]
    if task == MULTI_LABEL and {*texts} <= {"0", "1"} and rows:
        raise Failure(
            "the labels of the shards are rows of 0 and 1",
            found=_quote(rows[0]),
            expected="lists of the names or the numbers of the classes that an image has",
            fix='write the places of the ones: {"labels": [2]} instead of {"labels": [0, 0, 1]}',
            code=ExitCode.DATA,
        )
    names, numbers = _number_names(folder, texts)
    several = [label for label in labels if not isinstance(label, str)]
    if task == CLASSIFICATION and several:
        raise _kind_failure(folder, "an image has several labels", _quote(several[0]), "data.task=multi_label")
    values = FORMATS[task].encode(labels, numbers, len(names))
    if task == CLASSIFICATION:
        return LabelKind(task=task, classes=names), values
    return LabelKind(task=task, classes=names, sets=np.packbits(values, axis=1)), np.arange(len(labels))


def _quote(label: Label) -> str:
    text = repr(label)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"


def _infer_task(folder: Path, labels: Sequence[Label]) -> str:
    if any(not isinstance(label, str) for label in labels):
        return MULTI_LABEL
    numbers = [parse_number(str(label)) for label in labels]
    has_fraction = any(not number.is_integer() for number in numbers if number is not None)
    if has_fraction and None in numbers and all(map(_is_float, labels)):  # nan, inf, 1e39
        raise Failure(
            "a number to predict in the shards is not finite or too large",
            found=_quote(labels[numbers.index(None)]),
            expected="numbers that fit into 32 bits",
            fix="correct it or leave the sample out; if they are classes: "
            + shell_command("train data index", folder, "data.task=classification"),
            code=ExitCode.DATA,
        )
    return REGRESSION if has_fraction and None not in numbers else CLASSIFICATION


def _is_float(label: Label) -> bool:
    try:
        float(str(label))
    except ValueError:
        return False
    return True


def _number_names(folder: Path, labels: Sequence[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """The names of the classes, and the number of each label: its own, or its position among the names.

    Raises:
        Failure: DATA for labels of both kinds, a number in two spellings, and labels that are not in classes.txt.
    """
    names, numeric = _read_class_names(folder), [label for label in labels if label.isdecimal()]
    if len(numeric) == len(labels):
        values = {label: int(label) if len(label) < MAX_DIGITS else MAX_CLASSES for label in labels}
        largest = max(values.values(), default=0)
        if names is None and largest >= min(MAX_CLASSES, max(MIN_SPARSE, MAX_SPARSITY * len(values))):
            raise Failure(
                "a label of the shards is too large for the number of a class",
                found=f"{_quote(max(labels, key=lambda label: values[label]))}, and {len(values):,} different numbers",
                expected=f"below {MAX_CLASSES:,}, and most of the numbers: there is a class for each",
                fix=f"number the classes from 0, or write names, or a {CLASSES_FILE} with a name for each number; "
                f"to predict numbers: {shell_command('train data index', folder, 'data.task=regression')}",
                code=ExitCode.DATA,
            )
        spellings = {number: label for label, number in values.items()}
        if other := [label for label, number in values.items() if number < MAX_CLASSES and spellings[number] != label]:
            raise Failure(
                "the number of a class is written in two ways in the shards",
                found=f"{_quote(other[0])} and {_quote(spellings[values[other[0]]])}",
                expected="one text for each class",
                fix="if they are one class, write it in one way; if they are two, write names such as c01 and c1",
                code=ExitCode.DATA,
            )
        names = names or [str(number) for number in range(max(values.values(), default=-1) + 1)]
        missing = [label for label, number in values.items() if number >= len(names)]
    elif names is None and numeric:
        raise Failure(
            "some labels of the shards are numbers, and others are names",
            found=f"{_quote(numeric[0])} and {_quote(next(label for label in labels if not label.isdecimal()))}",
            fix=f"write numbers only, and their names into {folder / CLASSES_FILE}, one on each line",
            code=ExitCode.DATA,
        )
    else:
        names = names or [*labels]
        values = {name: number for number, name in enumerate(names)}
        missing = [label for label in labels if label not in values]
    if missing:
        alike = describe_look_alikes((missing[0], *names), ": ")
        raise Failure(
            f"a label of the shards is not in {CLASSES_FILE}",
            found=f"{_quote(missing[0])}, and {len(names)} names in {folder / CLASSES_FILE}{alike}",
            fix="write a name for each class, one on each line: the first line is that of 0",
            code=ExitCode.DATA,
        )
    return tuple(names), values


def _read_class_names(folder: Path) -> list[str] | None:
    """Raises Failure: IO; DATA for an empty line, and for a name that is there twice."""
    path = folder / CLASSES_FILE
    if not path.exists():
        return None
    with files.translate_os_errors(path, "read"):
        content = files.read_regular_file(path)
    lines = normalize_name(os.fsdecode(content.removeprefix(BOM_UTF8))).rstrip("\r\n").split("\n")
    names = [line.removesuffix("\r") for line in lines]
    name, count = Counter(names).most_common(1)[0]
    if count > 1 or not all(map(str.strip, names)):
        empty = next((number for number, each in enumerate(names, 1) if not each.strip()), None)
        raise Failure(
            f"{path} has a class twice" if empty is None else f"{path} has an empty line",
            found=name if empty is None else f"line {empty} of {len(names)}",
            expected="another name for each class, one on each line",
            fix="write names that differ: crane bird, crane machine",
            code=ExitCode.DATA,
        )
    return names


def _kind_failure(folder: Path, what: str, label: str, setting: str) -> Failure:
    return Failure(
        f"{what} in the shards, and others are of another kind",
        found=label,
        expected="in all samples a class, or a list of labels, or a number to predict",
        fix=f"if all may be read in one way, say so: {shell_command('train data index', folder, setting)}",
        code=ExitCode.DATA,
    )
