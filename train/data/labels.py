"""Makes labels of a table's cells: a class, several labels, or a number for each image.

Mistakes name the line of the table. This module does not import torch.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import class_folders, split_checks
from train.data.label_table import NO, TRAINING, YES, LabelTable, bad_table, list_lines, refuse_empty_cells
from train.files import one_line
from train.names import describe_look_alikes, read_name
from train.tasks import AUTO, CLASSIFICATION, MULTI_LABEL, REGRESSION, TASKS, TargetScale

Int64Array = npt.NDArray[np.int64]
SEPARATORS: Final = re.compile(r"[;|]")  # between the labels of one image
OTHER_SEPARATORS: Final = {
    ",": "commas",
    "/": "slashes",
    "+": "plus signs",
    "&": "ampersands",
    ":": "colons",
    None: "spaces",
}
LIST_PATTERN: Final = re.compile(r"[\[{].*[\]}]|\(.*,.*\)")  # as JSON and Python write it
# A number as people write it: 3.5 kg, 3,5, < 12 %.
LOOSE_NUMBER: Final = re.compile(r"[<>~≈±$€£]?\s*([-+]?(?:\d+[.,]?\d*|[.,]\d+)(?:[eE][-+]?\d+)?)[^\d.,]{0,8}")
# What spreadsheets, pandas and R write where a value is missing, in lower case.
MISSING_WORDS: Final = ("nan", "na", "n/a", "#n/a", "<na>", "null", "-", "--", "?", ".", "")
MAX_CLASS_NUMBERS: Final = 20  # more different whole numbers look like measurements, unless each has many images
MIN_IMAGES_PER_NUMBER: Final = 10
MAX_NUMBER: Final = float(np.finfo(np.float32).max)
NUM_STRATA: Final = 10  # a validation split takes the same share of each tenth of the numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLabels:
    """The labels of some rows of a table.

    classes: the names of the model's outputs. values: int64 [n], or as `SampleSource.labels` of another task.
    strata: int64 [n], from 0 without gaps: a validation split takes the same share of each number. notes, warnings: of
    cells that are read in another way than as they are.
    """

    task: str
    classes: tuple[str, ...]
    values: npt.NDArray[Any]
    strata: Int64Array
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def read_labels(table: LabelTable, rows: Sequence[int], data: DataConfig) -> TableLabels:
    """The labels of these rows, in the order of `LabelTable.rows_by_split`.

    Raises:
        Failure: DATA for cells that are no labels of the task; USAGE if it is unclear which task is meant.
    """
    task = find_task(table, rows, data)
    return READERS[task](table, rows, data)


def find_task(table: LabelTable, rows: Sequence[int], data: DataConfig) -> str:
    """data.task; for `auto` the task that the label column has. What could be two tasks is refused.

    Raises:
        Failure: USAGE, with the data.task to set.
    """
    if table.label_columns:
        if data.task not in (AUTO, MULTI_LABEL):
            fix = f"set data.task={MULTI_LABEL}, or data.columns.label to one column"
            what = f"data.task {data.task} takes one column of labels ({table.file})"
            raise Failure(what, found=table.label_name, fix=fix, code=ExitCode.USAGE)
        return MULTI_LABEL
    if data.task != AUTO:
        return data.task
    cells = [table.labels[row] for row in rows]
    counted, classes = f"{len({*cells}):,} different cells in {len(cells):,} lines", f"data.task={CLASSIFICATION}"
    if several := [row for row, cell in zip(rows, cells, strict=True) if SEPARATORS.search(cell)]:
        fix = f"set data.task={MULTI_LABEL} if an image has several; or {classes}, one class each"
        raise _unclear_task(table, "; or |: several labels of one image?", several[:1], fix)
    if all(map(class_folders.is_image, cells)):
        fix = "set data.columns.label to a column of classes; masks of pixels (segmentation) are not supported"
        raise _unclear_task(table, "image files", rows[:1], fix)
    words = {cell for cell in {*cells} if parse_number(cell) is None}
    bad = [row for row, cell in zip(rows, cells, strict=True) if cell in words]
    has_gaps = 0 < len(bad) < len(cells) and all(cell.lower() in MISSING_WORDS for cell in words)
    if (measures := look_like_measurements(cells)) or has_gaps:
        fixes = (
            ["write a number (with a decimal point, and no unit) into these cells or remove the lines"] if bad else []
        )
        fixes += [f"set data.task={REGRESSION} to predict the number"] if measures else []
        fix = f"{', and '.join(fixes)}; or set {classes} if each is a class"
        about = f"{counted}; no number in " if bad else f"{counted}, such as "
        raise _unclear_task(table, "numbers: to be predicted, or classes?", bad or rows[:1], fix, about)
    _refuse_other_separators(
        table, rows, f", and set data.task={MULTI_LABEL}; or {classes}, one class each", ExitCode.USAGE
    )
    if len({*cells}) > max(MAX_CLASS_NUMBERS, len(cells) / 2):
        fix = f"set data.columns.label to the column of the classes; or {classes} if each is a class"
        raise _unclear_task(table, "another cell in most lines: classes?", rows[:1], fix, f"{counted}, such as ")
    return CLASSIFICATION


def _unclear_task(table: LabelTable, holds: str, rows: Sequence[int], fix: str, about: str = "") -> Failure:
    """rows: those that raise the question. about: words before them."""
    what = f"the column {table.label_name} holds {holds} ({table.file})"
    return Failure(what, found=about + _quote_lines(table, rows), fix=fix, code=ExitCode.USAGE)


def _quote_lines(table: LabelTable, rows: Sequence[int]) -> str:
    """The lines of these rows, and the cell of the first."""
    return f"{list_lines([table.lines[row] for row in rows])}: {one_line(table.labels[rows[0]]) or 'an empty cell'}"


def _refuse_other_separators(table: LabelTable, rows: Sequence[int], way_out: str, code: ExitCode) -> None:
    """Refuse several labels in a cell that something else than ; or | divides."""
    cells = [table.labels[row] for row in rows]
    if separated := find_other_separator(cells):
        row, fix = rows[cells.index(separated[1])], f"write ; between the labels of an image (cat;sofa){way_out}"
        failure = _unclear_task(table, f"{separated[0]}: several labels of one image?", [row], fix)
        failure.code = code
        raise failure


def look_like_measurements(cells: Sequence[str]) -> bool:
    """Whether most are numbers, and some no whole ones or so many that most classes would have few images.

    A few bad cells (N/A, 3.5 kg, 3,5) do not make classes of a column of numbers.
    """
    count, values = 0, set[float]()
    for cell, lines in Counter(cells).items():
        match = LOOSE_NUMBER.fullmatch(cell)
        if match and (number := parse_number(match[1].replace(",", "."))) is not None:
            count, values = count + lines, values | {number}
    if len(values) < 2 or 2 * count <= len(cells):
        return False
    many = len(values) > MAX_CLASS_NUMBERS and count < MIN_IMAGES_PER_NUMBER * len(values)
    return many or not all(value.is_integer() for value in values)


def decimal_points(cells: Sequence[str]) -> list[str]:
    """The cells with decimal points, if all commas in them are certainly decimal commas; else as they are."""
    commas = [cell for cell in cells if "," in cell]
    certain = all(re.fullmatch(r"[-+]?\d+,\d+", cell) for cell in commas) and not any("." in cell for cell in cells)
    thousands = all(re.fullmatch(r"[-+]?[1-9]\d{0,2},\d{3}", cell) for cell in commas)
    return [cell.replace(",", ".") if certain and not thousands else cell for cell in cells]


def find_other_separator(cells: Sequence[str]) -> tuple[str, str] | None:
    """What divides several labels in cells instead of ; or |: its name in the plural, and such a cell; None if nothing.

    In names of classes it may be a part of the name. Labels are known by their repetition: the same ones in another
    order, one of them alone in a cell, or fewer labels than different cells.
    """
    different = sorted({*cells} - {""})
    if lists := [cell for cell in different if LIST_PATTERN.fullmatch(cell)]:
        return "lists", lists[0]
    for separator, plural in OTHER_SEPARATORS.items():
        sets = [frozenset(filter(None, map(str.strip, cell.split(separator)))) for cell in different]
        several = [names for names in sets if len(names) > 1]
        labels, alone = set[str]().union(*sets), set[str]().union(*(names for names in sets if len(names) == 1))
        # Words of a name are divided by spaces, and some are names too: dog, hot dog.
        spare = len(labels) if separator is None else len(labels) - 1
        repeats = spare < len({*sets}) or len({*sets}) < len(sets)
        if several and (repeats or (separator and any(names & alone for names in several))):
            return plural, different[sets.index(several[0])]
    return None


def parse_number(cell: str) -> float | None:
    """The number in a cell; None if there is none, or none that 32 bits hold."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if abs(number) <= MAX_NUMBER else None


def read_classes(table: LabelTable, rows: Sequence[int], data: DataConfig) -> TableLabels:
    """One class for each image, in alphabetical order.

    Raises:
        Failure: DATA for an empty cell, fewer than two classes, another number than data.classes, and for a class
            without a training image.
    """
    labels = [table.labels[row] for row in rows]
    refuse_empty_cells(table.file, table.label_name, labels, (table.lines[row] for row in rows))
    classes = tuple(sorted(set(labels)))
    if len(classes) < 2:
        actual = f"{len(rows):,} images of {one_line(classes[0])}"
        raise bad_table(table.file, "has fewer than two classes", actual, "add images of another class")
    _refuse_untrained_labels(table, rows, [{label} for label in labels], "class")
    split_checks.refuse_wrong_class_count(data, len(classes), "classes in the table", data.root)
    index = {name: number for number, name in enumerate(classes)}
    values = np.fromiter((index[name] for name in labels), np.int64, len(rows))
    warnings = [
        f"{list_lines([table.lines[row] for row in rows if table.labels[row] == name])} of the table: the class "
        f"{one_line(name)} looks like a missing value. fix: remove these lines, or fill their cells"
        for name in classes
        if name.lower() in MISSING_WORDS
    ]
    return TableLabels(task=CLASSIFICATION, classes=classes, values=values, strata=values, warnings=tuple(warnings))


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
        cells = [table.labels[row] for row in rows]
        if not any(map(SEPARATORS.search, cells)):
            way_out = "; or one ; at the end of a cell if each cell is one label"
            _refuse_other_separators(table, rows, way_out, ExitCode.DATA)
        sets = [{name for part in SEPARATORS.split(cell) if (name := read_name(part))} for cell in cells]
        classes = tuple(sorted(set().union(*sets)))
    if not any(sets):
        actual = f"{len(rows):,} lines without one"
        raise bad_table(table.file, f"has no label in {table.label_name}", actual, "give images labels")
    _refuse_untrained_labels(table, rows, sets, "label")
    split_checks.refuse_wrong_class_count(data, len(classes), "classes in the table", data.root)
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
    cells = decimal_points([table.labels[row] for row in rows])
    refuse_empty_cells(table.file, table.label_name, cells, (table.lines[row] for row in rows))
    numbers = [parse_number(cell) for cell in cells]
    if None in numbers:
        bad = [row for row, number in zip(rows, numbers, strict=True) if number is None]
        comma = " (with a decimal point, no comma)" if "," in table.labels[bad[0]] else ""
        fix = f"write a number{comma}, or remove the line; for names of classes set data.task={CLASSIFICATION}"
        what = f"has a cell in {table.label_name} that is no number"
        raise bad_table(table.file, what, _quote_lines(table, bad), fix)
    values = np.array(numbers, np.float32)
    training = values[: len(table.rows_of(TRAINING))]
    if len(np.unique(training)) < 2:
        actual = f"{len(rows):,} times {numbers[0]:g}"
        raise bad_table(table.file, "has no two different numbers to train on", actual, "give images their own number")
    commas = sum("," in table.labels[row] for row in rows)
    return TableLabels(
        task=REGRESSION,
        classes=(table.label_name,),
        values=values,
        strata=strata_of_numbers(values),
        notes=(f"decimal commas in {table.label_name} are read as points: {commas:,} cells",) if commas else (),
    )


def number_scale(training: npt.NDArray[np.float32], refusal: Callable[[str], Failure]) -> TargetScale:
    """The mean and the standard deviation of the training's numbers.

    Raises:
        Failure: what `refusal` makes of the number, if all are equal.
    """
    numbers = [float(number) for number in training]
    mean = math.fsum(numbers) / len(numbers)
    std = math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / len(numbers))
    if not std:
        raise refusal(f"{numbers[0]:g}")
    return TargetScale(mean=mean, std=std)


def one_number_failure(table: LabelTable, number: str) -> Failure:
    """All training rows of a table have the same number."""
    fix = "give the training images different numbers, or another data.val_fraction"
    return bad_table(table.file, "has one number in all training rows", number, fix)


def missing_validation_warnings(
    task: str, classes: Sequence[str], training: npt.NDArray[Any], validation: npt.NDArray[Any]
) -> tuple[str, ...]:
    """A warning of the classes or labels that no validation image has, where there are validation images.

    training, validation: as `SampleSource.labels`.
    """
    if not len(validation) or not TASKS[task].has_classes:
        return ()
    counts = [
        np.bincount(part, minlength=len(classes)) if part.ndim == 1 else part.sum(axis=0, dtype=np.int64)
        for part in (training, validation)
    ]
    return class_folders.missing_validation_warnings(classes, *(count.tolist() for count in counts))


READERS: Final[Mapping[str, Callable[[LabelTable, Sequence[int], DataConfig], TableLabels]]] = {
    CLASSIFICATION: read_classes,
    MULTI_LABEL: read_label_sets,
    REGRESSION: read_numbers,
}


def _without_gaps(numbers: npt.NDArray[Any]) -> Int64Array:
    """The numbers, renamed to 0, 1, 2, ... in their order."""
    return np.unique(numbers, return_inverse=True)[1].astype(np.int64)


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
