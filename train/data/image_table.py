"""Opens the images that a table lists: what its cells mean as labels, and in which split each row is.

Rows that no split column assigns are split in the same way in every run, whatever `run.seed` is. Mistakes name the line
of the table.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Final

import numpy as np
import torch

from entrypoint import ExitCode, Failure, list_some
from train.config.schema import DataConfig
from train.data import class_folders, image_lists, partition, registry
from train.data.sources.table import (
    NO,
    TEST,
    TRAINING,
    VALIDATION,
    YES,
    LabelTable,
    bad_table,
    list_lines,
    read_table,
    refuse_empty_cells,
)
from train.data.splits import DataSplits, configured_image_shape, configured_images, split_off
from train.files import one_line
from train.names import describe_look_alikes, read_name
from train.tasks import AUTO, CLASSIFICATION, MULTI_LABEL, REGRESSION, parse_number
from train.tasks.labels import ENCODERS, Values, missing_validation_warnings

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


def open_image_table(data: DataConfig, *_: object) -> DataSplits:
    """The images of all splits.

    Raises:
        Failure: as `read_table`, `read_labels` and `split_off`; DATA if all training images have one
            number, or a weight of 0; USAGE for a split that the table names and a key asks for.
    """
    table = read_table(data)
    read = read_labels(table, data)
    encoder = ENCODERS[read.task]
    rows = np.array(table.splits, str)
    of_split = {"training": rows == TRAINING, "validation": rows == VALIDATION, "test": rows == TEST}
    registry.refuse_second_splits(
        data,
        validation=f"the {VALIDATION} rows of {table.file}" if of_split["validation"].any() else None,
        test=f"the {TEST} rows of {table.file}" if of_split["test"].any() else None,
    )
    above = f"{table.images}/"  # left out of the paths if all are below it, so that the folder may move
    if not all(path.startswith(above) for path in table.paths):
        above = ""
    paths = replace(image_lists.pack_paths(table.paths, above), are_listed=bool(above) and table.has_relative_paths)
    images = configured_images(data, paths, read.values)
    listed = {name: images.select(torch.from_numpy(mask)) for name, mask in of_split.items() if mask.any()}
    groups = group_names(table, data)
    training, validation, test, parts = split_off(
        listed["training"],
        data,
        encoder.strata(read.values)[of_split["training"]],
        validation=listed.get("validation"),
        test=listed.get("test"),
        groups=None if groups is None else {name: [*compress(groups, mask)] for name, mask in of_split.items()},
    )
    weights = None
    if table.weights is not None:
        raw = np.array(table.weights, np.float64)[of_split["training"]][parts.training]
        if not raw.any():
            fix = "give training images a weight above 0, or leave the column out"
            raise bad_table(table.file, "gives no training image a weight", "all weights are 0", fix)
        # 1 on average, so that the loss keeps its scale.
        weights = torch.from_numpy((raw / raw.mean()).astype(np.float32))
    missing = missing_validation_warnings(read.task, read.classes, training.labels.numpy(), validation.labels.numpy())
    one_number_fix = "give the training images different numbers, or another data.val_fraction"
    return DataSplits(
        training=training,
        validation=validation,
        test=test,
        classes=read.classes,
        shape=configured_image_shape(data),
        has_own_validation=bool(of_split["validation"].any()),
        notes=(*table.notes, *read.notes, *parts.notes),
        warnings=(*table.warnings, *_missing_group_warnings(table), *read.warnings, *missing),
        task=read.task,
        target=encoder.scale(
            training.labels,
            lambda number: bad_table(table.file, "has one number in all training rows", number, one_number_fix),
        ),
        weights=weights,
    )


def _missing_group_warnings(table: LabelTable) -> Iterator[str]:
    """A warning of each group that is called as spreadsheets call what is missing: NA."""
    for name, count in Counter(table.groups).items():
        if count > 1 and name.lower() in MISSING_WORDS:
            yield (
                f"{count:,} images are of one group {one_line(name)}, which looks like a missing value: they stay in "
                "one split. fix: leave their cells empty, so that each is a group of its own"
            )


def group_names(table: LabelTable, data: DataConfig) -> list[str] | None:
    """The group of each row: of the column, or what data.group finds in the paths; None without groups."""
    if data.group is None:
        return table.groups
    above = f"{table.images}/"
    return partition.group_names((path.removeprefix(above) for path in table.paths), data.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLabels:
    """The labels of a table's rows: classes are the names of the model's outputs.

    notes, warnings: of cells that are read in another way than as they are.
    """

    task: str
    classes: tuple[str, ...]
    values: Values
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def read_labels(table: LabelTable, data: DataConfig) -> TableLabels:
    """The labels of all rows.

    Raises:
        Failure: DATA for cells that are no labels of the task; USAGE if it is unclear which task is meant.
    """
    task = find_task(table, data)
    return _read_number_cells(table) if task == REGRESSION else _read_names(table, task, data)


def find_task(table: LabelTable, data: DataConfig) -> str:
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
    cells, classes = table.labels, f"data.task={CLASSIFICATION}"
    counted = f"{len({*cells}):,} different cells in {len(cells):,} lines"
    if several := [row for row, cell in enumerate(cells) if SEPARATORS.search(cell)]:
        fix = f"set data.task={MULTI_LABEL} if an image has several; or {classes}, one class each"
        raise _unclear_task(table, "; or |: several labels of one image?", several[:1], fix)
    if all(map(class_folders.is_image, cells)):
        fix = "set data.columns.label to a column of classes; masks of pixels (segmentation) are not supported"
        raise _unclear_task(table, "image files", [0], fix)
    words = {cell for cell in {*cells} if parse_number(cell) is None}
    bad = [row for row, cell in enumerate(cells) if cell in words]
    has_gaps = 0 < len(bad) < len(cells) and all(cell.lower() in MISSING_WORDS for cell in words)
    if (measures := look_like_measurements(cells)) or has_gaps:
        fixes = (
            ["write a number (with a decimal point, and no unit) into these cells or remove the lines"] if bad else []
        )
        fixes += [f"set data.task={REGRESSION} to predict the number"] if measures else []
        fix = f"{', and '.join(fixes)}; or set {classes} if each is a class"
        about = f"{counted}; no number in " if bad else f"{counted}, such as "
        raise _unclear_task(table, "numbers: to be predicted, or classes?", bad or [0], fix, about)
    _refuse_other_separators(table, f", and set data.task={MULTI_LABEL}; or {classes}, one class each", ExitCode.USAGE)
    if len({*cells}) > max(MAX_CLASS_NUMBERS, len(cells) / 2):
        fix = f"set data.columns.label to the column of the classes; or {classes} if each is a class"
        raise _unclear_task(table, "another cell in most lines: classes?", [0], fix, f"{counted}, such as ")
    return CLASSIFICATION


def _unclear_task(
    table: LabelTable, holds: str, rows: Sequence[int], fix: str, about: str = "", code: ExitCode = ExitCode.USAGE
) -> Failure:
    """rows: those that raise the question. about: words before them."""
    what = f"the column {table.label_name} holds {holds} ({table.file})"
    return Failure(what, found=about + _quote_lines(table, rows), fix=fix, code=code)


def _quote_lines(table: LabelTable, rows: Sequence[int]) -> str:
    """The lines of these rows, and the cell of the first."""
    return f"{list_lines([table.lines[row] for row in rows])}: {one_line(table.labels[rows[0]]) or 'an empty cell'}"


def _refuse_other_separators(table: LabelTable, way_out: str, code: ExitCode) -> None:
    """Refuse several labels in a cell that something else than ; or | divides."""
    if separated := find_other_separator(table.labels):
        row, fix = table.labels.index(separated[1]), f"write ; between the labels of an image (cat;sofa){way_out}"
        raise _unclear_task(table, f"{separated[0]}: several labels of one image?", [row], fix, code=code)


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


def _read_names(table: LabelTable, task: str, data: DataConfig) -> TableLabels:
    """One class for each image, or any number of labels: names with `;` or `|` between them, or columns of 0 and 1.

    Classes are in alphabetical order, and columns in that of data.columns.label.

    Raises:
        Failure: DATA for an empty cell where a class should be, a cell that is neither 0 nor 1, fewer than two classes,
            no label at all, another number than data.classes, and for a class or label that no training image has.
    """
    names: Sequence[Collection[str]]
    cells = table.labels
    if table.label_columns:
        names = [_names_of_columns(table, row) for row in range(len(table.lines))]
    elif task == CLASSIFICATION:
        refuse_empty_cells(table.file, table.label_name, cells, table.lines)
        names = [(cell,) for cell in cells]
    else:
        if not any(map(SEPARATORS.search, cells)):
            way_out = "; or one ; at the end of a cell if each cell is one label"
            _refuse_other_separators(table, way_out, ExitCode.DATA)
        names = [{name for part in SEPARATORS.split(cell) if (name := read_name(part))} for cell in cells]
    if not any(names):
        actual = f"{len(names):,} lines without one"
        raise bad_table(table.file, f"has no label in {table.label_name}", actual, "give images labels")
    classes = table.label_columns or tuple(sorted(set[str]().union(*names)))
    if task == CLASSIFICATION and len(classes) < 2:
        actual = f"{len(cells):,} images of {one_line(classes[0])}"
        raise bad_table(table.file, "has fewer than two classes", actual, "add images of another class")
    _refuse_untrained_names(table, names, "class" if task == CLASSIFICATION else "label")
    registry.refuse_wrong_class_count(data, len(classes), "classes", data.root, " in the table")
    numbers = {name: number for number, name in enumerate(classes)}
    values = ENCODERS[task].encode(cells if task == CLASSIFICATION else names, numbers, len(classes))
    if task == MULTI_LABEL:
        values = values.astype(np.float32)
    warnings = [
        f"{list_lines([line for line, cell in zip(table.lines, cells, strict=True) if cell == name])} of the table: "
        f"the class {one_line(name)} looks like a missing value. fix: remove these lines, or fill their cells"
        for name in classes
        if task == CLASSIFICATION and name.lower() in MISSING_WORDS
    ]
    notes = [_whole_number_note(table, classes)] if task == CLASSIFICATION and data.task == AUTO else []
    empty = {name: cells.count("") for name, cells in zip(table.label_columns, table.label_cells, strict=True)}
    if counted := [f"{name} ({count:,})" for name, count in empty.items() if count]:
        notes.append(f"empty cells of label columns are read as 0: {list_some(counted)}")
    return TableLabels(
        task=task, classes=classes, values=values, notes=tuple(filter(None, notes)), warnings=tuple(warnings)
    )


def _whole_number_note(table: LabelTable, classes: Sequence[str]) -> str | None:
    """A note if all classes are whole numbers that do not count classes: ages or years; None for 0..K-1 and 1..K."""
    if not all(re.fullmatch(r"[-+]?\d+", name) for name in classes):
        return None
    numbers = sorted(map(int, classes))
    if numbers[0] in (0, 1) and numbers == [*range(numbers[0], numbers[0] + len(numbers))]:
        return None
    return (
        f"the {len(numbers):,} whole numbers of the column {table.label_name} ({numbers[0]} to {numbers[-1]}) are "
        f"taken as classes; data.task={REGRESSION} learns them as numbers, "
        f"and data.task={CLASSIFICATION} leaves this note out"
    )


def _names_of_columns(table: LabelTable, row: int) -> set[str]:
    """The columns that hold 1 in this row."""
    pairs = [*zip(table.label_columns, (cells[row] for cells in table.label_cells), strict=True)]
    for name, cell in pairs:
        if cell.lower() not in (*YES, *NO):
            actual = f"line {table.lines[row]}: {one_line(cell)} in the column {name}"
            raise bad_table(table.file, "has a label that is neither 0 nor 1", actual, "write 1 for yes, and 0 for no")
    return {name for name, cell in pairs if cell.lower() in YES}


def _refuse_untrained_names(table: LabelTable, names: Sequence[Collection[str]], noun: str) -> None:
    """Refuse a class or label that no training row has: the model would never learn it."""
    first = table.counts[0]
    trained = set[str]().union(*names[:first])
    name = next((min(untrained) for each in names[first:] if (untrained := {*each} - trained)), None)
    if name is not None:
        lines = [line for line, each in zip(table.lines, names, strict=True) if name in each]
        fix = "add training images of it, or remove these lines"
        actual = f"{one_line(name)}: {list_lines(lines)}{describe_look_alikes((name, *trained), '; ')}"
        raise bad_table(table.file, f"has a {noun} that no {TRAINING} row has", actual, fix)


def _read_number_cells(table: LabelTable) -> TableLabels:
    """A number for each image.

    Raises:
        Failure: DATA for a cell that is no finite number, and if all are equal.
    """
    cells = decimal_points(table.labels)
    refuse_empty_cells(table.file, table.label_name, cells, table.lines)
    numbers = ENCODERS[REGRESSION].encode(cells, {}, 1)
    if bad := np.flatnonzero(np.isnan(numbers)).tolist():
        comma = " (with a decimal point, no comma)" if "," in table.labels[bad[0]] else ""
        fix = f"write a number{comma}, or remove the line; for names of classes set data.task={CLASSIFICATION}"
        what = f"has a cell in {table.label_name} that is no number"
        raise bad_table(table.file, what, _quote_lines(table, bad), fix)
    values = numbers.astype(np.float32)
    if len(np.unique(values[: table.counts[0]])) < 2:
        actual = f"{table.counts[0]:,} times {numbers[0]:g}"
        raise bad_table(table.file, "has no two different numbers to train on", actual, "give images their own number")
    commas = sum("," in cell for cell in table.labels)
    warning = _point_warning(table)
    return TableLabels(
        task=REGRESSION,
        classes=(table.label_name,),
        values=values,
        notes=(f"decimal commas in {table.label_name} are read as points: {commas:,} cells",) if commas else (),
        warnings=(warning,) if warning else (),
    )


def _point_warning(table: LabelTable) -> str | None:
    """A warning if all points may divide thousands: 1.100 beside 12.345, and no longer number without one."""
    rows = [row for row, cell in enumerate(table.labels) if "." in cell]
    is_certain = any(re.fullmatch(r"[-+]?\d{4,}", cell) for cell in table.labels)
    if not rows or is_certain or not all(re.fullmatch(r"[-+]?[1-9]\d{0,2}\.\d{3}", table.labels[row]) for row in rows):
        return None
    cell = table.labels[rows[0]]
    return (
        f"the points in the column {table.label_name} are read as decimal points, {cell} as {float(cell):g} "
        f"({list_lines([table.lines[row] for row in rows])}). fix: if they divide thousands, remove them: "
        f"{cell.replace('.', '')}"
    )
