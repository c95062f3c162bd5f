"""Rows and series: their JSON, their table, and the machine that they belong to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import pytest

from bench import measurements, targets
from bench.estimates import Estimate, estimate_median, exact
from bench.measurements import Row, Series, Target, reported_row
from entrypoint import ExitCode, Failure

UNSURE = Estimate(value=0.98, low=0.95, high=1.01, quarter=0.97, three_quarters=0.99, of=5, sure=False)


def test_a_higher_value_reaches_a_target_for_higher_ones() -> None:
    assert targets.measured("1", exact(2.5)).is_reached is True
    assert targets.measured("1", exact(2.4)).is_reached is False


def test_a_lower_value_reaches_a_target_for_lower_ones() -> None:
    assert Target(what="x", limit=40.0, better="lower").is_reached(exact(40.0)) is True
    assert Target(what="x", limit=40.0, better="lower").is_reached(exact(41.0)) is False


@pytest.mark.parametrize(
    ("limit", "better", "reached"),
    [(0.94, "higher", True), (0.97, "higher", None), (1.02, "higher", False),
     (1.02, "lower", True), (1.0, "lower", None), (0.94, "lower", False)],
)  # fmt: skip
def test_bounds_that_hold_the_target_reach_nothing(
    limit: float, better: Literal["higher", "lower"], reached: bool | None
) -> None:
    assert Target(what="x", limit=limit, better=better).is_reached(UNSURE) is reached


def test_a_single_time_is_open_and_a_count_is_not() -> None:
    target = Target(what="x", limit=0.5)
    assert (target.is_reached(estimate_median([0.9])), target.is_reached(exact(0.9))) == (None, True)


@pytest.mark.parametrize(("limit", "cell"), [(0.94, "yes"), (0.97, "open"), (1.02, "NO"), (None, "-")])
def test_the_table_says_open_where_nothing_is_decided(limit: float | None, cell: str) -> None:
    row = Row(number="x", target=Target(what="w", limit=limit), estimate=UNSURE)
    assert measurements.format_cells(row)[-1] == cell


def test_what_was_not_measured_reaches_nothing_and_fails_nothing() -> None:
    row = targets.unmeasured("1", "needs a GPU")
    assert row.is_reached is None
    assert row.as_json()["missing"] == "needs a GPU"


def test_a_failed_row_shows_the_rank_s_error_and_keeps_the_end_of_its_log() -> None:
    log = "exit codes [1]\n  File x.py, line 1\nRuntimeError: no engine\nrank 0 of 1 (vm, pid 7) was the first to fail"
    row = measurements.failed_row("x", Failure("it has ended", found=log, fix="", code=ExitCode.PEER), Target(what="w"))
    assert row.missing == "it has ended; exit codes [1]; RuntimeError: no engine"
    assert row.as_json()["facts"] == {"log": log}


def test_a_figure_without_a_target_is_reported() -> None:
    row = reported_row("x", "a figure", exact(1.0), unit="s")
    assert (row.is_reached, str(row.target)) == (None, "reported")


@pytest.mark.parametrize("number", targets.TARGETS)
def test_each_row_of_the_table_can_be_written_as_json(number: str) -> None:
    output = json.loads(json.dumps(targets.measured(number, UNSURE, cores=2).as_json()))
    assert output["row"] == number
    assert output["value"] == 0.98
    assert output["facts"] == {"cores": 2}


def test_a_series_can_be_written_as_json() -> None:
    series = Series(name="s", title="Speed", x="processes", y="images/s", lines={"ours": [(1.0, 2.0)]})
    assert json.loads(json.dumps(series.as_json()))["lines"] == {"ours": [[1.0, 2.0]]}


MACHINE = {"cpu": "a processor", "date": "2026-01-01"}
CURVE = Series(name="s", title="Speed", x="processes", y="images/s", lines={"a": [(1, 10.0)], "b": [(2, 20.0)]})


def test_the_table_says_what_was_reached_and_what_was_not_measured() -> None:
    table = measurements.format_markdown(
        [targets.measured("7", exact(5.0)), targets.unmeasured("1", "needs a GPU")], MACHINE
    )
    seven, first = table.splitlines()[4:6]
    assert "≥ 4" in seven
    assert "| yes" in seven
    assert "not measured: needs a GPU" in first


def test_bounds_of_too_few_values_are_called_their_range() -> None:
    few, many = (
        measurements.format_cells(targets.measured("7", estimate_median([4.0, 5.0, 6.0] * times)))[3]
        for times in (1, 9)
    )
    assert (few, many) == ("range 4 to 6", "4 to 6")


def test_columns_are_aligned() -> None:
    table = measurements.format_table(["a", "long head"], [["a longer cell", "x"]])
    assert len({len(line) for line in table.splitlines()}) == 1


def test_a_bar_in_a_cell_does_not_break_the_table() -> None:
    assert "x \\| y" in measurements.format_table(["a"], [["x | y"]])


def test_a_series_is_a_table_with_a_line_for_each_place() -> None:
    table = measurements.format_markdown([CURVE], MACHINE).splitlines()
    assert table[-2].replace(" ", "") == "|1|10||"
    assert table[-1].replace(" ", "") == "|2||20|"


def test_json_holds_rows_series_and_the_machine() -> None:
    output = measurements.as_json([targets.measured("7", exact(5.0)), CURVE], MACHINE)
    assert [row["row"] for row in output["rows"]] == ["7"]
    assert [series["name"] for series in output["series"]] == ["s"]
    assert output["machine"] == MACHINE


def test_a_bound_just_below_a_thousand_is_written_without_an_exponent() -> None:
    assert measurements.format_bounds(0.98765, 999.7, sure=True) == "0.988 to 1,000"


def test_the_machine_is_named_with_its_cores_versions_and_the_day() -> None:
    machine = measurements.describe_machine("cpu", now=0.0)
    assert "cores" in machine["cpu"]
    assert machine["device"] == "cpu"
    assert machine["torch"] != "not installed"
    assert machine["date"] == "1970-01-01"


def test_a_processor_without_a_name_is_its_architecture(tmp_path: Path) -> None:
    assert measurements._processor(tmp_path / "none") == measurements.platform.machine()


def test_gpus_are_those_that_torch_may_use_and_parts_have_their_own_names() -> None:
    say = "print('a GPU MIG 1g.10gb', 'a GPU', 'a GPU', sep='\\n')"
    assert measurements._device_names("cuda", say) == "a GPU MIG 1g.10gb, 2 x a GPU"


def test_gpus_that_torch_does_not_name_are_a_device_still() -> None:
    assert measurements._device_names("cuda", "raise SystemExit('no driver')") == "cuda"
    assert measurements._device_names("cuda", "import time; time.sleep(60)", limit_s=0.2) == "cuda"


def test_figures_of_the_smallest_sizes_are_marked() -> None:
    assert "mean nothing" in measurements.describe_machine("cpu", now=0.0, quick=True)["quick"]
    assert "quick" not in measurements.describe_machine("cpu", now=0.0)
