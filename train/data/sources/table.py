"""Reads the table of `data.name: table`, which lists images with their labels: a CSV or TSV file with a header line.

Errors name the line of the file. This module imports neither torch nor numpy, and opens no image.
"""

from __future__ import annotations

import csv
import os
import re
import shlex
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import Final, TextIO, TypeVar

from entrypoint import ExitCode, Failure, list_some
from train import files
from train.config.schema import DataConfig
from train.data import class_folders
from train.data.registry import DataSource
from train.files import one_line
from train.names import find_file, nearest_name, normalize_name, other_form_fix, read_name
from train.tasks import TASKS, parse_number

PATH, LABEL, SPLIT, GROUP, WEIGHT = COLUMNS = ("path", "label", "split", "group", "weight")
DELIMITERS: Final = {".csv": ",", ".tsv": "\t", ".tab": "\t"}
OTHER_DELIMITERS: Final = (";", "\t", ",", "|")  # tried if the header line has not the columns with that of the ending
DELIMITER_LINE: Final = re.compile(r'"?sep=(.)"?', re.IGNORECASE)  # the first line, by which Excel knows it
# Other formats -> the command that makes a CSV file of them.
CONVERSIONS: Final = {
    ".parquet": "read_parquet",
    ".feather": "read_feather",
    ".xlsx": "read_excel",
    ".xls": "read_excel",
    ".ods": "read_excel",
}
TRAINING, VALIDATION, TEST = SPLITS = ("train", "val", "test")
# The words of the split column, in lower case -> the split.
SPLIT_WORDS: Final[Mapping[str, str]] = {
    "train": TRAINING,
    "training": TRAINING,
    "val": VALIDATION,
    "valid": VALIDATION,
    "validation": VALIDATION,
    "dev": VALIDATION,
    "test": TEST,
    "testing": TEST,
}
YES, NO = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no", "")  # cells of a column is_valid, in any case
# What tables call the columns: proposed in the fix. A column of splits is known by its cells.
OTHER_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    PATH: ("file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "image_id", "img", "id"),
    LABEL: ("labels", "class", "classes", "category", "target", "y", "species", "diagnosis", "tags"),
    GROUP: ("group", "groups", "group_id", "patient", "patient_id", "patientid", "subject", "subject_id", "video"),
    WEIGHT: ("weight", "weights", "sample_weight"),
}
MAX_SPLIT_CELLS: Final = 20  # more different cells are no column of splits or folds
MAX_LISTED: Final = 3  # lines in a message
MAX_LISTED_COLUMNS: Final = 12
FLAG_ROWS: Final = 100  # so many are looked at for columns of 0 and 1
ONE_LINE_FIX: Final = (
    "keep one line for each image; several labels go into its cell with ; between them (data.task=multi_label); boxes "
    "(detection) are not supported"
)
QUOTATION_FIX: Final = 'close the quotation marks ("), and write a quotation mark inside a cell twice: "a 12"" pipe"'
MAX_WEIGHT: Final = 1e6
LISTED_FOLDER_ROWS: Final = 64  # a folder with so many rows is listed once; files of other folders are looked up
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelTable:
    """The rows of a table: first those for training, then those for validation and those for the test.

    Each list has one entry for each row. paths: joined to the folder of the images. labels: the cells of the label
    column, which is called label_name. label_columns, label_cells: instead of it, if each label has a column. splits:
    one of SPLITS; without a split column all rows are training rows. lines: of the file, counted from 1. groups,
    weights: None if the table has no such column. has_relative_paths: all are. notes, warnings: of what is not read.
    """

    file: Path
    images: Path
    paths: list[str]
    labels: list[str]
    label_name: str
    lines: list[int]
    splits: list[str]
    has_relative_paths: bool
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    label_columns: tuple[str, ...] = ()
    label_cells: tuple[list[str], ...] = ()
    groups: list[str] | None = None
    weights: list[float] | None = None

    @property
    def counts(self) -> list[int]:
        """The rows of each of SPLITS."""
        return [self.splits.count(split) for split in SPLITS]


def check_header(data: DataConfig) -> None:
    """Read only the header line: every task calls this. Raises Failure: NO_INPUT without the file, DATA for missing
    columns."""
    with _open_text(Path(data.root)) as stream:
        _read_header(stream, data)


def read_table(data: DataConfig) -> LabelTable:
    """Read the table, and look for each image file.

    Raises:
        Failure: NO_INPUT for a missing table or image, DATA for a table with mistakes, naming the line.
    """
    file = Path(data.root)
    with _open_text(file) as stream:
        header = _read_header(stream, data)
        table = _collect(file, data, header, _read_rows(stream, file, header.delimiter, header.skipped))
        table = replace(table, notes=(*table.notes, *_quotation_notes(stream, file, header)))
    if not table.paths:
        raise bad_table(file, "has no row", "only the header line", "add a line for each image")
    _refuse_repeated_paths(table)
    _refuse_groups_in_two_splits(table)
    if renamed := _find_images(table):
        _refuse_repeated_paths(table)
        written = "are written in another Unicode form than the names of their files"
        note = f"{renamed:,} of {len(table.paths):,} paths of {file} {written}: these are read"
        table = replace(table, notes=(*table.notes, note))
    return _sort_by_split(table)


def _sort_by_split(table: LabelTable) -> LabelTable:
    """The same rows in the order of `LabelTable`; of a split in that of the file. Until then rows are as in the file,
    so that the first mistake of the file is the one that is named."""
    order = [row for split in SPLITS for row, name in enumerate(table.splits) if name == split]

    def sort(cells: list[T]) -> list[T]:
        return [cells[row] for row in order]

    return replace(
        table,
        paths=sort(table.paths),
        labels=sort(table.labels),
        label_cells=tuple(map(sort, table.label_cells)),
        lines=sort(table.lines),
        splits=sort(table.splits),
        groups=None if table.groups is None else sort(table.groups),
        weights=None if table.weights is None else sort(table.weights),
    )


def _open_text(file: Path) -> TextIO:
    """Raises Failure: NO_INPUT if the file cannot be opened, USAGE for another format."""
    suffix = file.suffix.lower()
    if file.is_dir():
        tables = sorted(path.name for path in file.iterdir() if path.suffix.lower() in DELIMITERS)
        name = tables[0] if tables else "TABLE.csv"
        fix = f"set data.root={file / name}, or data.name=folder for class folders"
        raise Failure(
            "data.root is a folder, not a table",
            found=f"{file.absolute()}: {list_some(tables) or 'no table in it'}",
            fix=fix,
            code=ExitCode.NO_INPUT,
        )
    if suffix not in DELIMITERS:
        conversion = f'python -c "import pandas; pandas.{CONVERSIONS.get(suffix, "read_table")}'
        fix = f"save it as CSV: {conversion}('{file.name}').to_csv('{file.stem}.csv', index=False)\""
        raise Failure(
            f"data.name: table does not read {suffix or 'a file without an ending'}",
            found=str(file),
            expected="a file that ends in .csv or .tsv",
            fix=fix if suffix in CONVERSIONS else "save it as CSV",
            code=ExitCode.USAGE,
        )
    try:
        stream = files.open_regular_file(file)
        first = stream.peek(2)[:2]  # Excel's "Unicode text" begins with a mark
        encoding = (
            "utf-16-le" if first[1:] == b"\0" else "utf-16" if first in (BOM_UTF16_LE, BOM_UTF16_BE) else "utf-8-sig"
        )
        return TextIOWrapper(stream, encoding=encoding, newline="")
    except OSError as error:
        near = other_form_fix(file) or files.did_you_mean(file)
        raise Failure(
            f"the table data.root cannot be read: {error.strerror}",
            found=str(file.absolute()),
            fix=f"{near}set data.root to the table (in a container: mount its folder)",
            code=ExitCode.NO_INPUT,
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TableHeader:
    """The columns, and how the lines are written.

    names: of all columns. positions: our name of each column that is read -> where it is; of several label columns all.
    skipped: the lines before the header line. comments: how many of them are comments.
    """

    names: list[str]
    positions: Mapping[str, list[int]]
    delimiter: str
    skipped: int
    comments: int


def _read_header(stream: TextIO, data: DataConfig) -> TableHeader:
    file = Path(data.root)
    delimiters: Sequence[str] = (DELIMITERS[file.suffix.lower()], *OTHER_DELIMITERS)
    skipped, comments = 0, list[str]()
    for skipped, line in enumerate(_read_lines(stream, file)):
        if skipped == 0 and (stated := DELIMITER_LINE.fullmatch(line.rstrip("\r\n"))):
            delimiters = (stated[1], *delimiters)
        elif line.startswith("#"):
            comments.append(f"line {skipped + 1}: {one_line(line.strip())}")
        elif line.strip():
            break
    required = {*column_names(data, PATH), *column_names(data, LABEL)}
    headers = {delimiter: _header_names(stream, file, delimiter, skipped) for delimiter in delimiters}
    fitting = next((delimiter for delimiter, names in headers.items() if required.issubset(names)), None)
    delimiter = fitting or max(headers, key=lambda other: len(headers[other]))
    header = headers[delimiter]
    if any(map(class_folders.is_image, header)):
        actual = f"line {skipped + 1}: {delimiter.join(header)}"
        fix = f"put a first line with the names of the columns: {delimiter.join((PATH, LABEL))}"
        fix += f"; or remove the # in front of it ({comments[-1]})" if comments else ""
        raise bad_table(file, "has no header line", actual, fix)
    unknown = [name for name in data.columns if name not in COLUMNS]
    if unknown:
        raise Failure(
            f"data.columns: {unknown[0]} is no column that is read",
            found=f"data.columns: {data.columns}",
            expected=f"names for: {', '.join(COLUMNS)}",
            fix="write data.columns.label=NAME, for example",
            code=ExitCode.USAGE,
        )
    positions: dict[str, list[int]] = {}
    for column in COLUMNS:
        for name in column_names(data, column):
            if header.count(name) > 1:
                actual = _list_columns(header)
                raise bad_table(file, f"has the column {name} {header.count(name)} times", actual, "rename one")
            if name in header:
                positions.setdefault(column, []).append(header.index(name))
            elif column in (PATH, LABEL) or column in data.columns:
                flags = _flag_columns(stream, file, delimiter, skipped, header) if column == LABEL else []
                raise _missing_column(file, column, name, header, flags)
    return TableHeader(names=header, positions=positions, delimiter=delimiter, skipped=skipped, comments=len(comments))


def _header_names(stream: TextIO, file: Path, delimiter: str, skipped: int) -> list[str]:
    """The cells of the header line. Empty ones at its end are no columns: a cell below them would be lost."""
    cells = next(_read_rows(stream, file, delimiter, skipped, strict=False), (1, [""]))[1]
    names = [*map(read_name, cells)]
    return names[: max((position for position, name in enumerate(names, 1) if name), default=0)]


def column_names(data: DataConfig, column: str) -> list[str]:
    """What the table calls a column; the label may have several."""
    names = data.columns.get(column, column)
    return [*map(normalize_name, names if isinstance(names, list) else [names])]


def _flag_columns(stream: TextIO, file: Path, delimiter: str, skipped: int, header: Sequence[str]) -> list[str]:
    """The columns that hold only 0 and 1, or yes and no, in the first lines; those of a split are no labels."""
    rows = [cells for _, cells in islice(_read_rows(stream, file, delimiter, skipped, strict=False), 1, FLAG_ROWS + 1)]
    columns = {
        name: {cell.strip().lower() for cell in cells}
        for name, cells in zip(header, zip(*rows, strict=False), strict=False)
    }
    flags, words = [name for name in columns if _flagged_split(name) is None], {*YES, *NO} - {""}
    return [name for name in flags if columns[name] <= words]


def _missing_column(file: Path, column: str, name: str, header: Sequence[str], flags: Sequence[str]) -> Failure:
    """flags: the columns of 0 and 1, each of which may be a label."""
    lowered = {title.lower(): title for title in header}
    usual = (lowered[word] for word in (column, *OTHER_NAMES.get(column, ())) if word in lowered)
    similar = nearest_name(name, header) or next(usual, "NAME")
    fix = f"set data.columns.{column}={similar}, the column of the {column}s; or rename it to {column}"
    if len(flags) > 1:
        several = shlex.quote(f"data.columns.{column}=[{','.join(flags)}]")
        fix += f"; or {several} if each column of 0 and 1 is a label"
    return bad_table(file, f"has no column {name}", _list_columns(header), fix)


def _list_columns(header: Sequence[str]) -> str:
    return f"columns: {list_some(header, MAX_LISTED_COLUMNS, one_line) or 'none'}"


def _read_rows(
    stream: TextIO, file: Path, delimiter: str, skipped: int, *, strict: bool = True
) -> Iterator[tuple[int, list[str]]]:
    """(line, cells) of each row that is not empty, the header included. skipped: lines before it."""
    stream.seek(0)
    # A blank after the delimiter is no part of the cell, and the quotation mark behind it none either.
    reader = csv.reader(
        islice(_read_lines(stream, file), skipped, None),
        delimiter=delimiter,
        skipinitialspace=delimiter != " ",
        strict=strict,
    )
    first = skipped + 1  # line of the row
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield skipped + reader.line_num, cells
            first = skipped + reader.line_num + 1
    except csv.Error as error:
        raise bad_table(file, "is no whole table", f"line {first}: {error}", QUOTATION_FIX) from error


def _read_lines(stream: TextIO, file: Path) -> Iterator[str]:
    """Raises Failure: DATA for bytes that are no text, with the encoding that they probably have."""
    number = 0
    try:
        for number, line in enumerate(stream, 1):  # noqa: B007
            yield line
    except UnicodeDecodeError as error:
        before, after = error.object[: error.start], error.object[error.start :]
        content = (before.rpartition(b"\n")[2] + after.partition(b"\n")[0]).decode("cp1252", errors="replace")
        line_number = number + before.count(b"\n") + 1
        convert = f"iconv -f WINDOWS-1252 -t UTF-8 {shlex.quote(str(file))} > {shlex.quote(f'{file.stem}-utf8.csv')}"
        raise bad_table(
            file,
            "is no text in UTF-8",
            f"line {line_number}, read as Windows-1252: {one_line(content.strip())}",
            f"if that line is right so: {convert}; or in Excel save it as CSV UTF-8",
        ) from error


def _collect(file: Path, data: DataConfig, header: TableHeader, rows: Iterator[tuple[int, list[str]]]) -> LabelTable:
    columns, width = header.positions, len(header.names)
    base = os.path.abspath(data.images if data.images is not None else file.parent)
    positions = [position for column in columns.values() for position in column]
    number = max(positions) + 1
    lines, short, longer = list[int](), list[int](), list[int]()
    cells_at: dict[int, list[str]] = {position: [] for position in positions}
    unused = {position: set[str]() for position in range(width) if position not in cells_at}
    before, _ = next(rows)
    for line, cells in rows:
        if line > before + 1:
            _refuse_enclosed_row(file, header, number, before + 1, cells)
        before = line
        has_more = any(cell.strip() for cell in cells[width:])
        if has_more or len(cells) < number:
            actual = f"line {line}: {', '.join(one_line(cell.strip()) for cell in cells)}"
            fix = "give each line a cell for each column; put a cell that contains the delimiter into quotation marks"
            if has_more and class_folders.is_image(cells[columns[PATH][0] + 1]):
                fix = "give the column of row names a name in the header line too, as R's write.csv does"
            problem = f"cells for {width} columns" if has_more else f"of at least {number} cells"
            raise bad_table(file, f"has a line with {len(cells)} {problem}", actual, fix)
        lines.append(line)
        for position, column_cells in cells_at.items():
            column_cells.append(cells[position].strip() if position in columns[PATH] else read_name(cells[position]))
        if len(cells) < width:
            short.append(line)
        elif len(cells) > width and cells[width - 1].strip():  # a delimiter in a cell may have pushed an empty one out
            longer.append(line)
        for position, values in unused.items():
            if position < len(cells) and len(values) <= MAX_SPLIT_CELLS:
                values.add(cells[position].strip().lower())
    if 0 < len(longer) < len(lines):  # all of them: a delimiter at each end
        raise bad_table(
            file,
            f"has lines with an empty cell behind the last of {width} columns, and lines without",
            f"line {longer[0]}",
            "put a cell that contains the delimiter into quotation marks; or end each line with a delimiter, or none",
        )
    cells_of = {column: cells_at[places[0]] for column, places in columns.items()}
    label_names = column_names(data, LABEL)
    several = isinstance(data.columns.get(LABEL), list)
    refuse_empty_cells(file, column_names(data, PATH)[0], cells_of[PATH], lines)
    split_name = column_names(data, SPLIT)[0]
    unused_names = [header.names[position] or "without a name" for position in unused]
    notes = (
        f"comments before the header line of the table are not read: {header.comments}" if header.comments else None,
        f"not used of the table: {_list_columns(unused_names)}" if unused else None,
        f"{list_lines(short)} of the table: cells are missing at the end, in columns that are not used"
        if short
        else None,
    )
    return LabelTable(
        file=file,
        images=Path(base),
        paths=[os.path.normpath(os.path.join(base, name)) for name in cells_of[PATH]],
        has_relative_paths=not any(map(os.path.isabs, cells_of[PATH])),
        labels=cells_of[LABEL],
        label_name=", ".join(label_names),
        label_columns=tuple(label_names) if several else (),
        label_cells=tuple(cells_at[position] for position in columns[LABEL]) if several else (),
        lines=lines,
        notes=tuple(filter(None, notes)),
        warnings=tuple(
            _split_warnings(columns, dict(zip(unused_names, unused.values(), strict=True)), cells_of[PATH], data)
        ),
        splits=[_parse_split(file, split_name, *pair) for pair in zip(cells_of[SPLIT], lines, strict=True)]
        if SPLIT in columns
        else [TRAINING] * len(lines),
        # An image without a group is a group of its own.
        groups=[name or f"line {line}" for name, line in zip(cells_of[GROUP], lines, strict=True)]
        if GROUP in columns
        else None,
        weights=[_parse_weight(file, *pair) for pair in zip(cells_of[WEIGHT], lines, strict=True)]
        if WEIGHT in columns
        else None,
    )


def _refuse_enclosed_row(file: Path, header: TableHeader, number: int, line: int, cells: Iterable[str]) -> None:
    """Refuse a cell of several lines of which one is a row, with its image: a quotation mark was not closed.

    number: of cells that a row has at least. line: its first one.
    """
    for text in chain.from_iterable(cell.splitlines()[1:] for cell in cells):
        parts = text.split(header.delimiter)
        if len(parts) >= number and class_folders.is_image(parts[header.positions[PATH][0]].strip(' "')):
            actual = f"line {line} and the next ones, with {one_line(text)}"
            raise bad_table(file, "has a quotation mark that encloses other rows", actual, QUOTATION_FIX)


def _quotation_notes(stream: TextIO, file: Path, header: TableHeader) -> Iterator[str]:
    """A note of a needless quotation mark in a table with tabs whose header line has none: most writers of tabs quote
    nothing, and mean the mark itself."""
    stream.seek(0)
    lines = islice(_read_lines(stream, file), header.skipped, None)
    if header.delimiter == "\t" and '"' not in next(lines):
        cells = (re.search(r'(?:^|\t)("[^"\t]+")(?:\t|$)', line.rstrip("\r\n")) for line in lines)
        for line, cell in enumerate(cells, header.skipped + 2):
            if cell:
                yield f"line {line} of the table: {cell[1]} is read without its quotation marks, as in a CSV file"
                return


def _split_warnings(
    columns: Collection[str], unused: Mapping[str, Set[str]], paths: Sequence[str], data: DataConfig
) -> Iterator[str]:
    """A warning for each unused column that probably holds splits, groups or weights, and of splits in the paths.

    unused: its name -> its different cells in lower case, no more than MAX_SPLIT_CELLS and one.
    """
    for name, cells in unused.items():
        splits, folds = {SPLIT_WORDS.get(cell) for cell in cells}, ""
        if "fold" in name.lower() and 1 < len(cells) <= MAX_SPLIT_CELLS and all(map(str.isdecimal, cells)):
            folds = f" data.fold=1/{len(cells)}"
        is_flag = _flagged_split(name) is not None and cells <= {*YES, *NO}
        probable = {
            SPLIT: len(cells) > 1 and (is_flag or None not in splits or TRAINING in splits),
            GROUP: data.group is None and (folds or name.lower() in OTHER_NAMES[GROUP]),
            WEIGHT: name.lower() in OTHER_NAMES[WEIGHT],
        }
        for column in [column for column, holds in probable.items() if holds and column not in columns]:
            fix = f"data.columns.{column}={one_line(name)}{folds}"
            yield f"the column {one_line(name)} is not used, and looks like {column}s of the images. fix: {fix}"
    folders = {re.split(r"[\\/]", path)[0].lower() for path in paths}
    if SPLIT not in columns and len(folders) > 1 and folders <= SPLIT_WORDS.keys():
        words = f"the paths in the table begin with {' and '.join(sorted(folders))}, and it has no column {SPLIT}"
        yield f"{words}: they are mixed. fix: add that column, with these words"


def _flagged_split(name: str) -> str | None:
    """The split that 1 stands for in a column of this name, such as is_valid; None for any other name."""
    return SPLIT_WORDS.get(re.sub("^is[_ ]?", "", name.lower()))


def refuse_empty_cells(file: Path, name: str, cells: Iterable[str], lines: Iterable[int]) -> None:
    """Raises Failure (DATA), naming the lines. name: of the column."""
    empty = [line for cell, line in zip(cells, lines, strict=True) if not cell]
    if empty:
        counted = "an empty cell" if len(empty) == 1 else f"{len(empty):,} empty cells"
        fix = f"fill the column {name} there, or remove these lines"
        raise bad_table(file, f"has {counted} in the column {name}", list_lines(empty), fix)


def list_lines(lines: Sequence[int]) -> str:
    """line 3; or: lines 3, 5, 7 and 12 more."""
    return f"line{'s' * (len(lines) > 1)} {list_some(lines, MAX_LISTED)}"


def _parse_split(file: Path, name: str, word: str, line: int) -> str:
    cell, flagged = word.lower(), _flagged_split(name)
    split = SPLIT_WORDS.get(cell)
    if flagged is not None and cell in (*YES, *NO):
        split = flagged if cell in YES else VALIDATION if flagged == TRAINING else TRAINING
    if split is None:
        fix = "write train, val or test; or leave the column out, and data.val_fraction splits"
        raise bad_table(file, "has a split that is unknown", f"line {line}: {one_line(word) or 'an empty cell'}", fix)
    return split


def _parse_weight(file: Path, cell: str, line: int) -> float:
    weight = parse_number(cell)
    if weight is None or not 0 <= weight <= MAX_WEIGHT:
        comma = " (a decimal point, no comma)" if "," in cell else ""
        fix = f"write a number from 0 to {MAX_WEIGHT:,.0f}{comma}"
        raise bad_table(file, "has a weight that is no such number", f"line {line}: {one_line(cell)}", fix)
    return weight


def _refuse_repeated_paths(table: LabelTable) -> None:
    first: dict[str, int] = {}
    for row, path in enumerate(table.paths):
        before = first.setdefault(path, row)
        if before == row:
            continue
        lines = f"lines {table.lines[before]} and {table.lines[row]}: {one_line(path)}"
        if table.splits[before] != table.splits[row]:
            what, fix = "has an image in two splits", "keep the line of one split"
        elif table.labels[before] != table.labels[row]:
            what, fix = "has an image with two labels", ONE_LINE_FIX
        else:
            what, fix = "has an image twice", "keep one of the lines; a column weight lets an image count more"
        raise bad_table(table.file, what, lines, fix)


def _refuse_groups_in_two_splits(table: LabelTable) -> None:
    first: dict[str, int] = {}
    for row, group in enumerate(table.groups or ()):
        before = first.setdefault(group, row)
        if table.splits[before] != table.splits[row]:
            actual = f"{one_line(group)}: {table.splits[before]} in line {table.lines[before]}, "
            actual += f"{table.splits[row]} in line {table.lines[row]}"
            fix = "move all lines of a group to one split, or leave out the column split: then groups stay together"
            raise bad_table(table.file, "has a group in two splits", actual, fix)


def _find_images(table: LabelTable) -> int:
    """Look for each image file, and correct the paths in another Unicode form. Returns the number of these.

    Raises:
        Failure: NO_INPUT for a missing image.
    """
    rows_by_folder: dict[str, list[int]] = {}
    for row, path in enumerate(table.paths):
        rows_by_folder.setdefault(os.path.dirname(path), []).append(row)
    missing = [row for folder, rows in rows_by_folder.items() for row in _missing_rows(folder, rows, table.paths)]
    listed = dict[str, dict[str, str]]()
    for row in missing:
        table.paths[row] = find_file(table.paths[row], listed) or table.paths[row]
    lost = [row for row in missing if not os.path.lexists(table.paths[row])]
    if not lost:
        return len(missing)
    row, count = min(lost), len(lost)
    path = table.paths[row]
    counted = "1 image that is not there" if count == 1 else f"{count:,} images that are not there"
    actual, fix = f"line {table.lines[row]}: {one_line(path)}", _missing_image_fix(table, path)
    raise bad_table(table.file, f"names {counted}", actual, fix, ExitCode.NO_INPUT)


def _missing_rows(folder: str, rows: Sequence[int], paths: Sequence[str]) -> list[int]:
    """The rows whose file is not in the folder."""
    if len(rows) < LISTED_FOLDER_ROWS:
        return [row for row in rows if not os.path.lexists(paths[row])]
    try:
        names = {*os.listdir(folder)}
    except (OSError, ValueError):  # ValueError: NUL
        return list(rows)
    return [row for row in rows if os.path.basename(paths[row]) not in names]


def _missing_image_fix(table: LabelTable, path: str) -> str:
    """Also of paths as Windows writes them, and of those that another computer has, such as C:\\photos\\cat\\1.png."""
    below = path.removeprefix(f"{table.images}/")
    ends, slashes = [0, *(match.end() for match in re.finditer(r"[\\/]", below))], below.replace("\\", "/")
    above = next((below[:end] for end in ends if os.path.lexists(table.images / slashes[end:].lstrip("/"))), None)
    if above is not None:
        fixes = [f"remove {above} from the beginning of the paths"] if above else []
        fixes += [r"write / instead of \ in the column of the paths"] if slashes != below else []
        return ", and ".join(fixes)
    ending = next((suffix for suffix in class_folders.IMAGE_SUFFIXES if os.path.lexists(path + suffix)), None)
    if ending is not None:
        return f"write the files' names with their ending, {ending}"
    return (
        "set data.images to the folder that the paths are relative to (without it: the folder of the table); "
        "or correct or remove these lines"
    )


def bad_table(file: Path, what: str, actual: str, fix: str, code: ExitCode = ExitCode.DATA) -> Failure:
    """The Failure for a mistake in the table. actual: begins with its lines."""
    return Failure(f"the table {file} {what}", found=actual, fix=fix, code=code)


TABLE: Final = DataSource(
    reader="image_table:open_image_table",
    count=check_header,
    keys=frozenset({"root", "images", "columns", "val_fraction", "test_fraction", "fold", "group", "cache", "color"}),
    origin="files",
    channels=3,
    has_class_names=True,
    hashes_paths=True,
    tasks=tuple(TASKS),
)
