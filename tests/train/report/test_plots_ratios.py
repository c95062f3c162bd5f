"""Measured values beside their targets."""

from __future__ import annotations

import pytest

from train.report import plots
from train.report.plots import TargetRatio


@pytest.mark.parametrize(
    ("value", "target", "at_least", "share"), [(3.0, 2.5, True, 1.2), (2.0, 2.5, True, 0.8), (20, 40, False, 2)]
)
def test_right_of_one_is_reached(value: float, target: float, at_least: bool, share: float) -> None:
    assert plots.share_of_target(value, target, at_least=at_least) == pytest.approx(share)


def test_a_target_of_nothing_is_reached_by_nothing() -> None:
    assert plots.share_of_target(0, 0, at_least=False) == 1
    assert plots.share_of_target(8, 0, at_least=False) < 1


def test_rows_become_a_picture() -> None:
    rows = [TargetRatio(name="row", share=share, low=share, high=2, met=share > 1) for share in (0.5, 1.2)]
    assert plots.draw_ratios("bench", rows).startswith(b"\x89PNG")
