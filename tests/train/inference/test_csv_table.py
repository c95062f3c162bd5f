"""A table of predictions is safe to open in a spreadsheet, and every program reads back what was written."""

from __future__ import annotations

import csv
import io
import math
import os
from pathlib import Path

import pytest

from entrypoint import ExitCode, Failure
from train.inference import csv_table


def read(table: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(table.decode(), newline="")))


@pytest.mark.parametrize(
    "name", ["a,b.png", 'say "hi".png', "two\nlines.png", "tab\there.png", "semi;colon.png", "ä.png"]
)
def test_any_path_is_read_back_as_it_is(name: str) -> None:
    assert read(csv_table.encode(("path", "loss"), [(csv_table.path_cell(name), 0.5)]))[1] == [name, "0.5"]


def test_bytes_that_are_no_text_become_escapes_in_valid_utf_8() -> None:
    name = os.fsdecode(b"caf\xe9.png")
    assert read(csv_table.encode(("path",), [(csv_table.path_cell(name),)]))[1] == ["caf\\udce9.png"]


@pytest.mark.parametrize("name", ["=1+1.png", "-rf.png", "+.png", "@sum.png", "\tx.png", "\rx.png", "\uff1dx.png"])
def test_a_relative_path_is_no_formula_and_leads_to_the_same_file(name: str) -> None:
    cell = csv_table.path_cell(name)
    assert not cell.startswith(csv_table.FORMULA_STARTS)
    assert Path(cell) == Path(name)


@pytest.mark.parametrize("name", ["=cmd()", "-cat", "+dog", "@owl", "\t=1", "\uff1d1", "-1\n", "-\uff11", "-inf"])
def test_a_name_that_looks_like_a_formula_gets_an_apostrophe(name: str) -> None:
    assert csv_table.text_cell(name) == f"'{name}"


@pytest.mark.parametrize("name", ["-1", "+3", "-0.5e3", "cat", "3", "'x", ""])
def test_numbers_and_other_names_stay_as_they_are(name: str) -> None:
    assert csv_table.text_cell(name) == name


def test_a_separator_of_another_language_starts_no_cell_of_its_own() -> None:
    table = csv_table.encode(("path",), [("photos;=cmd().png",)]).decode()
    assert list(csv.reader(io.StringIO(table), delimiter=";"))[1] == ["photos;=cmd().png"]


@pytest.mark.parametrize(("value", "cell"), [(0.123456789, 0.123457), (1.0, 1.0), (math.nan, ""), (math.inf, "")])
def test_numbers_have_six_digits_and_what_is_no_number_is_empty(value: float, cell: float | str) -> None:
    assert csv_table.number_cell(value) == cell


def test_a_new_file_and_an_older_table_may_be_written(tmp_path: Path) -> None:
    csv_table.refuse_unusable_file(tmp_path / "new.csv", "--csv")
    (tmp_path / "old.CSV").write_text("old")
    csv_table.refuse_unusable_file(tmp_path / "old.CSV", "--csv")


def test_an_image_taken_for_the_table_is_not_replaced(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"takes the name of a \.csv file") as caught:
        csv_table.refuse_unusable_file(tmp_path / "cat.png", "--csv")
    assert caught.value.code == ExitCode.USAGE
    assert "--csv cat.png.csv" in str(caught.value.fix)


def folder(path: Path) -> None:
    path.mkdir()


def link(path: Path) -> None:
    path.symlink_to("elsewhere")


@pytest.mark.parametrize("make", [folder, link, os.mkfifo])
def test_what_is_no_plain_file_is_not_replaced(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "out.csv")
    with pytest.raises(Failure, match="cannot write") as caught:
        csv_table.refuse_unusable_file(tmp_path / "out.csv", "--csv")
    assert caught.value.code == ExitCode.OUTPUT


def test_a_folder_that_is_not_there_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="cannot write") as caught:
        csv_table.refuse_unusable_file(tmp_path / "none" / "out.csv", "--csv")
    assert (caught.value.code, caught.value.fix) == (ExitCode.OUTPUT, f"mkdir -p {tmp_path / 'none'}")


def test_a_failed_write_keeps_the_older_table_and_names_the_option(tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_text("old")
    name = f"{'x' * 245}.csv"  # with the temporary file's prefix it is too long
    with pytest.raises(Failure) as caught:
        csv_table.write(tmp_path / name, b"new", "--csv")
    assert "--csv DIR/NAME.csv" in str(caught.value.fix)
    assert [path.name for path in tmp_path.iterdir()] == ["old.csv"]
