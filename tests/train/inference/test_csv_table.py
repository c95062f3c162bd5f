"""A table of predictions is safe to open in a spreadsheet, and every program reads back what was written."""

from __future__ import annotations

import csv
import io
import math
import os
from pathlib import Path

import pytest

from train.inference import csv_table


def read(table: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(table.decode("utf-8-sig"), newline="")))


@pytest.mark.parametrize(
    "name", ["a,b.png", 'say "hi".png', "two\nlines.png", "tab\there.png", "semi;colon.png", "ä.png"]
)
def test_any_path_is_read_back_as_it_is(name: str) -> None:
    assert read(csv_table.encode(("path", "loss"), [(csv_table.path_cell(name), 0.5)]))[1] == [name, "0.5"]


def test_a_spreadsheet_sees_that_it_is_utf_8() -> None:
    assert csv_table.encode(("path",), [("ä.png",)]).startswith(b"\xef\xbb\xbf")


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
