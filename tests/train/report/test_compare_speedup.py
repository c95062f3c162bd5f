"""Speed-up and efficiency by hand-checked numbers."""

from __future__ import annotations

import pytest

from train.report import compare
from train.report.compare import ScalingMeasurement


def test_speed_up_is_against_the_fewest_processes() -> None:
    points = [ScalingMeasurement(processes=4, images_per_s=300.0), ScalingMeasurement(processes=1, images_per_s=100.0)]
    found = compare.compute_scaling(points)
    assert [(one.processes, one.speed_up, one.efficiency) for one in found] == [(1, 1.0, 1.0), (4, 3.0, 0.75)]


def test_efficiency_counts_from_where_the_series_begins() -> None:
    points = [ScalingMeasurement(processes=4, images_per_s=400.0), ScalingMeasurement(processes=16, images_per_s=800.0)]
    assert [one.efficiency for one in compare.compute_scaling(points)] == [1.0, 0.5]


def test_a_spread_becomes_one_of_speed_up() -> None:
    base, four = (
        ScalingMeasurement(processes=1, images_per_s=100.0),
        ScalingMeasurement(processes=4, images_per_s=300.0, low=250, high=350),
    )
    assert [(one.low, one.high) for one in compare.compute_scaling([base, four])] == [(1.0, 1.0), (2.5, 3.5)]


def test_a_speed_up_that_was_measured_in_turns_counts_as_it_is() -> None:
    points = [
        ScalingMeasurement(processes=1, images_per_s=100.0),
        ScalingMeasurement(processes=2, images_per_s=150.0, speed_up=1.6),
    ]
    assert [(one.speed_up, one.efficiency) for one in compare.compute_scaling(points)] == [(1.0, 1.0), (1.6, 0.8)]


def test_what_was_not_measured_is_left_out() -> None:
    assert compare.compute_scaling([ScalingMeasurement(processes=2, images_per_s=0.0)]) == []
    assert compare.scaling_panels({"strong": []}) == []


def test_the_panels_show_the_ideal_the_75_percent_line_and_each_series() -> None:
    points = [ScalingMeasurement(processes=2, images_per_s=100.0), ScalingMeasurement(processes=4, images_per_s=150.0)]
    up, share = compare.scaling_panels({"strong": points})
    assert {series.name: list(series.y) for series in up.series} == {
        "ideal": [1.0, 2.0],
        "75% of ideal": [0.75, 1.5],
        "strong": [1.0, 1.5],
    }
    assert [list(series.y) for series in share.series] == [[100, 100], [75, 75], [100, pytest.approx(75)]]
    assert up.y == "speed-up over 2 processes"


def test_dots_at_the_ideal_are_not_cut() -> None:
    _, share = compare.scaling_panels(
        {"strong": [ScalingMeasurement(processes=count, images_per_s=100.0 * count) for count in (1, 2)]}
    )
    assert share.top == pytest.approx(108)
