"""Pairs of measurements: in turns, the first ones aside, and how sure the median is."""

from __future__ import annotations

import pytest

from train.bench import pairs
from train.bench.pairs import Pairs


def test_sides_take_turns_and_every_second_pair_begins_with_the_peer() -> None:
    called: list[str] = []

    def side(name: str) -> float:
        called.append(name)
        return 1.0

    pairs.interleaved(lambda: side("a"), lambda: side("b"), pairs=3, warm_up=1)
    assert "".join(called) == "abbaabba"


def test_the_warm_up_does_not_count() -> None:
    took = iter([100.0, 1.0, 2.0, 3.0])
    found = pairs.interleaved(lambda: next(took), lambda: 1.0, pairs=2, warm_up=2)
    assert found.ours == (2.0, 3.0)


def test_a_ratio_is_of_each_pair_so_that_what_slows_both_does_not_count() -> None:
    found = Pairs(ours=(1.0, 10.0, 100.0), peer=(2.0, 20.0, 200.0))
    assert found.faster().value == 2.0
    assert found.longer().value == 0.5
    assert (found.faster().low, found.faster().high) == (2.0, 2.0)


def test_a_difference_is_told_in_the_unit_that_was_asked_for() -> None:
    assert Pairs(ours=(3.0,), peer=(1.0,)).over(1e6).value == 2e6


def test_the_bounds_lie_around_the_median_and_narrow_with_more_pairs() -> None:
    few, many = (pairs.estimate([1.0, 2.0, 3.0, 4.0, 5.0] * times) for times in (1, 20))
    assert few.low < few.value == many.value == 3.0 < few.high
    assert many.high - many.low < few.high - few.low


@pytest.mark.parametrize(("number", "aside"), [(6, 0), (8, 0), (9, 1), (20, 5), (60, 21)])
def test_as_many_values_are_left_out_as_tables_of_the_sign_test_say(number: int, aside: int) -> None:
    found = pairs.estimate([float(value) for value in range(number)])
    assert (found.low, found.high, found.sure) == (aside, number - 1 - aside, True)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_too_few_values_for_a_confidence_are_told_with_their_range(number: int) -> None:
    found = pairs.estimate([float(value) for value in range(number)])
    assert (found.low, found.high, found.sure) == (0, number - 1, False)


def test_a_ratio_of_medians_has_the_spread_of_both_in_its_bounds() -> None:
    found = pairs.quotient([8.0, 10.0, 12.0], [1.0, 2.0, 4.0])
    assert found is not None
    assert (found.low, found.value, found.high) == (2.0, 5.0, 12.0)


def test_nothing_is_divided_by_what_may_be_no_time_at_all() -> None:
    assert pairs.quotient([1.0, 1.0], [-0.1, 5.0]) is None


def test_of_a_count_there_is_no_spread() -> None:
    found = pairs.exactly(8)
    assert (found.low, found.value, found.high, found.of) == (8, 8, 8, 1)


@pytest.mark.parametrize("values", [[1.0], [1.0, 2.0], [5.0, 1.0, 3.0]])
def test_quartiles_lie_inside_what_was_seen(values: list[float]) -> None:
    found = pairs.estimate(values)
    assert min(values) <= found.quarter <= found.value <= found.three_quarters <= max(values)
