"""Measured values beside their targets."""

from __future__ import annotations

import pytest

from train.report import plots
from train.report.plots import TargetRatio


def ratio(value: float, target: float, *, at_least: bool, met: bool = True) -> TargetRatio:
    """One without a spread."""
    return TargetRatio(name="row", value=value, low=value, high=value, target=target, at_least=at_least, met=met)


@pytest.mark.parametrize(
    ("value", "target", "at_least", "share"), [(3.0, 2.5, True, 1.2), (2.0, 2.5, True, 0.8), (20, 40, False, 2)]
)
def test_right_of_one_is_reached(value: float, target: float, at_least: bool, share: float) -> None:
    row = ratio(value, target, at_least=at_least)
    assert plots._share_of_target(row, row.value) == pytest.approx(share)


def test_a_target_of_nothing_is_reached_by_nothing() -> None:
    assert plots._share_of_target(ratio(0, 0, at_least=False), 0) == 1
    assert plots._share_of_target(ratio(8, 0, at_least=False), 8) < 1


def test_rows_become_a_picture() -> None:
    rows = [ratio(3.0, 2.5, at_least=True), ratio(0, 0, at_least=False, met=False)]
    assert plots.draw_ratios("bench", rows).startswith(b"\x89PNG")
