"""One number for each image: the metrics."""

from __future__ import annotations

import math

import pytest
import torch
from evaluations import evaluate

from train.tasks import TargetScale
from train.tasks.regression import Regression

AGES = Regression(classes=("age",), target=TargetScale(mean=10.0, std=2.0))


def test_numbers_are_measured_in_their_own_unit() -> None:
    outputs, labels = torch.tensor([[0.0], [1.0], [-1.0]]), torch.tensor([10.0, 14.0, 7.0])
    result, _ = evaluate(AGES, outputs, labels)
    assert result.values["mae"] == pytest.approx((0 + 2 + 1) / 3)
    mean = 31 / 3
    variation = sum((value - mean) ** 2 for value in (10, 14, 7))
    assert result.values["r2"] == pytest.approx(1 - 5 / variation)
    assert result.values["loss"] == pytest.approx((0 + 1 + 0.25) / 3)


def test_equal_numbers_have_no_r2() -> None:
    result, _ = evaluate(AGES, torch.zeros(2, 1), torch.full((2,), 3.0))
    assert math.isnan(result.values["r2"] or 0.0)
