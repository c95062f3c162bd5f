"""Medians with their bounds: how sure they are."""

from __future__ import annotations

import pytest

from bench.estimates import estimate_median, exact, ratio_of_medians


def test_the_bounds_lie_around_the_median_and_narrow_with_more_pairs() -> None:
    few, many = (estimate_median([1.0, 2.0, 3.0, 4.0, 5.0] * times) for times in (1, 20))
    assert few.low < few.value == many.value == 3.0 < few.high
    assert many.high - many.low < few.high - few.low


@pytest.mark.parametrize(("number", "aside"), [(6, 0), (8, 0), (9, 1), (20, 5), (60, 21)])
def test_as_many_values_are_left_out_as_tables_of_the_sign_test_say(number: int, aside: int) -> None:
    estimate = estimate_median([float(value) for value in range(number)])
    assert (estimate.low, estimate.high, estimate.sure) == (aside, number - 1 - aside, True)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_too_few_values_for_a_confidence_are_told_with_their_range(number: int) -> None:
    estimate = estimate_median([float(value) for value in range(number)])
    assert (estimate.low, estimate.high, estimate.sure) == (0, number - 1, False)


def test_a_ratio_of_medians_has_the_spread_of_both_in_its_bounds() -> None:
    estimate = ratio_of_medians([8.0, 10.0, 12.0], [1.0, 2.0, 4.0])
    assert estimate is not None
    assert (estimate.low, estimate.value, estimate.high) == (2.0, 5.0, 12.0)


def test_nothing_is_divided_by_what_may_be_no_time_at_all() -> None:
    assert ratio_of_medians([1.0, 1.0], [-0.1, 5.0]) is None


def test_of_a_count_there_is_no_spread() -> None:
    estimate = exact(8)
    assert (estimate.low, estimate.value, estimate.high, estimate.of) == (8, 8, 8, 1)


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0], [5.0, 1.0, 3.0]])
def test_quartiles_lie_inside_what_was_seen(values: list[float]) -> None:
    estimate = estimate_median(values)
    assert min(values) <= estimate.quarter <= estimate.value <= estimate.three_quarters <= max(values)
