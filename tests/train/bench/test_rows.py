"""Rows: a value beside its target, or why there is none."""

from __future__ import annotations

import json

import pytest

from train.bench import rows
from train.bench.pairs import Estimate, exactly
from train.bench.rows import Series, Target

UNSURE = Estimate(value=0.98, low=0.95, high=1.01, quarter=0.97, three_quarters=0.99, of=5, sure=False)


def test_a_higher_value_reaches_a_target_for_higher_ones() -> None:
    assert rows.measured("1", exactly(2.5)).holds is True
    assert rows.measured("1", exactly(2.4)).holds is False


def test_a_lower_value_reaches_a_target_for_lower_ones() -> None:
    assert rows.measured("4a", exactly(40.0)).holds is True
    assert rows.measured("4a", exactly(41.0)).holds is False


def test_where_it_must_be_sure_the_bound_counts_not_the_median() -> None:
    assert Target(what="x", limit=0.97).holds(UNSURE) is True
    assert Target(what="x", limit=0.97, surely=True).holds(UNSURE) is False
    assert Target(what="x", limit=1.0, better="lower", surely=True).holds(UNSURE) is False


def test_what_was_not_measured_reaches_nothing_and_fails_nothing() -> None:
    row = rows.unmeasured("1", "needs a GPU")
    assert row.holds is None
    assert row.as_json()["missing"] == "needs a GPU"


def test_a_figure_without_a_target_is_reported() -> None:
    row = rows.figure("x", "a figure", exactly(1.0), unit="s")
    assert (row.holds, row.target.told()) == (None, "reported")


@pytest.mark.parametrize("number", rows.TARGETS)
def test_each_row_of_the_table_can_be_written_as_json(number: str) -> None:
    told = json.loads(json.dumps(rows.measured(number, UNSURE, cores=2).as_json()))
    assert told["row"] == number
    assert told["value"] == 0.98
    assert told["facts"] == {"cores": 2}


def test_a_series_can_be_written_as_json() -> None:
    series = Series(name="s", title="Speed", x="processes", y="images/s", lines={"ours": [(1.0, 2.0)]})
    assert json.loads(json.dumps(series.as_json()))["lines"] == {"ours": [[1.0, 2.0]]}
