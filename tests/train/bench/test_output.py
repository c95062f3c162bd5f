"""The table and the JSON object that a bench ends with."""

from __future__ import annotations

from train.bench import output, rows
from train.bench.pairs import estimate, exactly
from train.bench.rows import Series

MACHINE = {"cpu": "a processor", "date": "2026-01-01"}
CURVE = Series(name="s", title="Speed", x="processes", y="images/s", lines={"a": [(1, 10.0)], "b": [(2, 20.0)]})


def test_the_table_says_what_was_reached_and_what_was_not_measured() -> None:
    told = output.markdown([rows.measured("7", exactly(5.0)), rows.unmeasured("1", "needs a GPU")], MACHINE)
    seven, one = told.splitlines()[4:6]
    assert "≥ 4" in seven
    assert "| yes" in seven
    assert "not measured: needs a GPU" in one


def test_bounds_of_too_few_values_are_called_their_range() -> None:
    few, many = (output.cells(rows.measured("7", estimate([4.0, 5.0, 6.0] * times)))[3] for times in (1, 9))
    assert (few, many) == ("range 4 to 6", "4 to 6")


def test_columns_are_aligned() -> None:
    told = output.table(["a", "long head"], [["a longer cell", "x"]])
    assert len({len(line) for line in told.splitlines()}) == 1


def test_a_bar_in_a_cell_does_not_break_the_table() -> None:
    assert "x \\| y" in output.table(["a"], [["x | y"]])


def test_a_series_is_a_table_with_a_line_for_each_place() -> None:
    told = output.markdown([CURVE], MACHINE).splitlines()
    assert told[-2].replace(" ", "") == "|1|10||"
    assert told[-1].replace(" ", "") == "|2||20|"


def test_json_holds_rows_series_and_the_machine() -> None:
    found = output.as_json([rows.measured("7", exactly(5.0)), CURVE], MACHINE)
    assert [row["row"] for row in found["rows"]] == ["7"]
    assert [series["name"] for series in found["series"]] == ["s"]
    assert found["machine"] == MACHINE


def test_numbers_are_short() -> None:
    assert [output.short(value) for value in (0.98765, 12.345, 54586.2, float("inf"))] == [
        "0.988",
        "12.3",
        "54,586",
        "inf",
    ]
