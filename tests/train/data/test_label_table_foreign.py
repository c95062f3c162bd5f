"""Tables as R, Excel, pandas, sqlite3 and Python's csv write them; tests/data/tables holds their files."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from images import write_image
from label_tables import rows, write_table

from entrypoint import Failure
from train.config.schema import DataConfig
from train.data import registry
from train.data.splits import DataSplits

TABLES = Path(__file__).parents[2] / "data" / "tables"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """The eight images that the tables list."""
    for number in range(8):
        write_image(tmp_path / f"im/{number}.png", 30 * number)
    return tmp_path


def opened(file: Path, **changes: Any) -> DataSplits:
    return registry.open_splits(DataConfig(name="table", root=str(file), image_size=8, val_fraction=0.0, **changes))


def refused(file: Path, **changes: Any) -> Failure:
    with pytest.raises(Failure) as caught:
        opened(file, **changes)
    return caught.value


def summary_of(file: Path, **changes: Any) -> registry.DataSummary:
    """What `train check` says."""
    data = DataConfig(name="table", root=str(file), image_size=8, val_fraction=0.0, **changes)
    return registry.summarize(data, registry.open_splits(data))


def copied(name: str, folder: Path) -> Path:
    return Path(shutil.copy(TABLES / name, folder))


CATS_AND_DOGS = (
    "r-csv2.csv",
    "excel-sep.csv",
    "header-comma.csv",
    "r-write-csv2.csv",
    "r-write-csv.csv",
    "python-excel.csv",
    "python-unix.csv",
    "sqlite3.csv",
    "pandas.csv",
    "excel-unicode.csv",
    "excel-utf8.csv",
    "comments.csv",
)


@pytest.mark.parametrize("name", CATS_AND_DOGS)
def test_a_table_of_another_program_has_its_images_and_classes(name: str, photos: Path) -> None:
    splits = opened(copied(name, photos))
    assert (splits.classes, splits.training.labels.tolist()) == (("cat", "dog"), [0, 1] * 4)


def test_a_line_with_more_cells_than_columns_is_refused(photos: Path) -> None:
    failure = refused(copied("extra-cells.csv", photos))
    assert (failure.code, failure.found) == (65, "line 2: im/0.png, cat, small")
    assert "3 cells for 2 columns" in failure.what


def test_row_names_that_the_header_line_does_not_count_are_explained(photos: Path) -> None:
    failure = refused(copied("r-write-table.csv", photos))
    assert (failure.code, "row names" in failure.fix) == (65, True)


@pytest.mark.parametrize(("task", "code"), [("auto", 64), ("multi_label", 65)])
def test_a_column_of_pythons_lists_is_no_column_of_classes(task: str, code: int, photos: Path) -> None:
    failure = refused(copied("pandas-lists.csv", photos), task=task)
    assert (failure.code, failure.found) == (code, "line 4: ['cat', 'dog']")
    assert "(cat;sofa)" in failure.fix


def test_decimal_commas_of_r_are_read_as_numbers(photos: Path) -> None:
    table = copied("r-write-csv2.csv", photos)
    splits = opened(table, task="regression", columns={"label": "size"})
    assert splits.training.labels.tolist() == [1.5, 2, 3.25, 4, 5.5, 6, 7, 8]
    assert "decimal commas in size are read as points: 3 cells" in splits.notes


@pytest.mark.parametrize("header", ["path,label", "path,label,"])
def test_empty_cells_at_the_end_are_harmless_and_full_ones_are_not(header: str, tmp_path: Path) -> None:
    assert opened(write_table(tmp_path, ["000.png,a,,", "001.png,b,"], header)).classes == ("a", "b")
    assert refused(write_table(tmp_path, ["000.png,a,,", "001.png,b,c"], header)).found == "line 3: 001.png, b, c"


def test_columns_that_are_not_used_are_named_at_check_and_start(photos: Path) -> None:
    table = copied("header-comma.csv", photos)
    assert summary_of(table).notes == opened(table).notes == ("not used of the table: columns: size, cm",)


def test_comments_and_missing_cells_are_counted(tmp_path: Path) -> None:
    lines = ["# seen in May", "path,label,height", "000.png,a,1", "001.png,b"]
    notes = opened(write_table(tmp_path, lines, "# made by hand")).notes
    assert notes == (
        "comments before the header line of the table are not read: 2",
        "not used of the table: columns: height",
        "line 5 of the table: cells are missing at the end, in columns that are not used",
    )


def test_a_header_line_that_is_a_comment_is_named(tmp_path: Path) -> None:
    failure = refused(write_table(tmp_path, rows("ab"), "# path,label"))
    assert failure.found == "line 2: 000.png,a"
    assert "remove the # in front of it (line 1: # path,label)" in failure.fix


SPLIT_COLUMNS = {  # name -> cells
    "Split": ["train", "train", "val", "test"],
    "subset": ["Training", "Training", "Validation", "Validation"],
    "set": ["train", "train", "valid", "valid"],
    "phase": ["train", "train", "dev", "dev"],
    "is_valid": ["False", "False", "True", "True"],
    "is_test": ["0", "0", "1", "1"],
}


@pytest.mark.parametrize(("name", "cells"), SPLIT_COLUMNS.items(), ids=SPLIT_COLUMNS)
def test_a_column_of_splits_under_another_name_is_warned_of_and_the_fix_reads_it(
    name: str, cells: list[str], tmp_path: Path
) -> None:
    table = write_table(tmp_path, rows("abab", cells), f"path,label,{name}")
    (warning,) = summary_of(table).warnings
    assert warning.endswith(f"fix: data.columns.split={name}")
    splits = opened(table, columns={"split": name})
    measured = [len(split.labels) for split in (splits.validation, splits.test) if split is not None]
    assert (len(splits.training.labels), sum(measured)) == (2, 2)


def test_a_column_of_folds_is_warned_of_and_the_fix_keeps_each_together(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows("ab" * 10, [number // 4 for number in range(20)]), "path,label,fold")
    (warning,) = summary_of(table).warnings
    assert warning.endswith("fix: data.columns.group=fold data.fold=1/5")
    data = DataConfig(name="table", root=str(table), image_size=8, columns={"group": "fold"}, fold="1/5")
    validation = registry.open_splits(data).validation
    assert len({int(Path(path).stem) // 4 for path in validation.paths}) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(("name", "key"), [("patient_id", "group"), ("Weight", "weight"), ("Group", "group")])
def test_columns_of_groups_and_weights_are_named_with_their_key(name: str, key: str, tmp_path: Path) -> None:
    table = write_table(tmp_path, rows("abab", [1, 2, 3, 4]), f"path,label,{name}")
    assert [warning.rpartition("fix: ")[2] for warning in summary_of(table).warnings] == [f"data.columns.{key}={name}"]


def test_paths_that_begin_with_the_names_of_splits_are_warned_of(tmp_path: Path) -> None:
    paths = [f"{split}/{number}.png" for split in ("train", "Val") for number in range(2)]
    for number, path in enumerate(paths):
        write_image(tmp_path / path, number)
    table = write_table(tmp_path, [f"{path},{'ab'[number % 2]}" for number, path in enumerate(paths)], images=0)
    (warning,) = summary_of(table).warnings
    assert warning.startswith("the paths in the table begin with train and val, and it has no column split")


@pytest.mark.parametrize("cells", ["wxyz", "wwww"])
def test_a_column_called_set_that_holds_something_else_is_no_split(cells: str, tmp_path: Path) -> None:
    assert summary_of(write_table(tmp_path, rows("abab", cells), "path,label,set")).warnings == ()


def test_a_windows_encoding_is_offered_with_the_line_as_it_would_be(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows(["café", "thé"]))
    table.write_bytes(table.read_text().encode("cp1252"))
    failure = refused(table)
    assert (failure.code, failure.found) == (65, "line 2, read as Windows-1252: 000.png,café")
    assert "iconv -f WINDOWS-1252 -t UTF-8" in failure.fix


def test_a_bad_byte_far_down_is_named_with_its_line(tmp_path: Path) -> None:
    table = write_table(tmp_path, rows(["a", "b"] * 700), images=0)
    table.write_bytes(table.read_bytes() + b"x.png,th\xe9\n")
    assert refused(table).found == "line 1402, read as Windows-1252: x.png,thé"


FOREIGN_PATHS = {
    "backslashes": ("im\\{}.png", "write / instead of \\ in the column"),
    "windows": ("C:\\Users\\me\\im\\{}.png", "remove C:\\Users\\me\\ from the beginning of the paths, and write /"),
    "another-computer": ("/home/me/photos/im/{}.png", "remove /home/me/photos/ from the beginning of the paths"),
    "a-folder-too-many": ("photos/im/{}.png", "remove photos/ from the beginning of the paths"),
}


@pytest.mark.parametrize(("path", "fix"), FOREIGN_PATHS.values(), ids=FOREIGN_PATHS)
def test_paths_of_another_computer_have_the_fix_that_fits(path: str, fix: str, photos: Path) -> None:
    lines = [f"{path.format(number)},{'ab'[number % 2]}" for number in range(8)]
    failure = refused(write_table(photos, lines, images=0))
    assert (failure.code, failure.fix.startswith(fix)) == (66, True), failure.fix
