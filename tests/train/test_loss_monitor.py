"""Which losses are a jump: ten times what was usual, and worse than guessing."""

from __future__ import annotations

import math

import pytest

from train.loss_monitor import RecentLosses

CURVES = {
    "falls": [2.3 * 0.9**k for k in range(80)],
    "rises-with-warm-up": [2.3, 2.4, 3.0, 4.5, 6.0, 9.0, 7.0, 3.0, 2.2],
    "near-zero-and-noisy": [1e-3, 2e-4, 1e-3, 3e-4, 1e-3, 0.4, 1e-3, 1.9],
    "first-readings": [0.1, 500.0],
}


def jumps(losses: list[float], classes: int = 10) -> list[int]:
    recent = RecentLosses(classes)
    return [step for step, loss in enumerate(losses) if recent.add(step, loss)]


@pytest.mark.parametrize("losses", CURVES.values(), ids=CURVES)
def test_what_trainings_do_is_no_jump(losses: list[float]) -> None:
    assert jumps(losses) == []


def test_a_jump_is_told_once_and_the_next_one_again() -> None:
    assert jumps([2.0] * 6 + [50.0] * 3 + [2.0] + [60.0]) == [6, 10]


def test_what_was_usual_is_not_what_jumped() -> None:
    recent = RecentLosses(10)
    for step in range(6):
        recent.add(step, 2.0)
    for step in range(6, 40):
        recent.add(step, 50.0)
    found = recent.find_jump(40, 50.0)
    assert found is not None
    assert (found.usual, found.step) == (2.0, 40)


def test_a_loss_that_is_not_finite_is_not_remembered() -> None:
    assert jumps([2.0, 2.0, math.inf, 2.0, math.nan, 2.0, 2.0, 30.0]) == [7]


def test_an_infinite_loss_is_no_jump_but_the_matter_of_fp16s_scaler() -> None:
    assert jumps([2.0] * 6 + [math.inf, 2.0]) == []


@pytest.mark.parametrize(("classes", "found"), [(10, [5]), (1000, [])])
def test_a_jump_is_worse_than_guessing(classes: int, found: list[int]) -> None:
    assert jumps([0.2] * 5 + [4.0], classes) == found
