"""The expected calibration error is that of Guo et al. (2017)."""

from __future__ import annotations

import numpy as np
import pytest

from train.inference.mistakes import NUM_BINS, measure_calibration


def by_the_paper(confidences: np.ndarray, correct: np.ndarray) -> float:
    """Equation 3, bin by bin."""
    error = 0.0
    for number in range(15):
        inside = (confidences > number / 15) & (confidences <= (number + 1) / 15)
        if inside.any():
            error += inside.mean() * abs(correct[inside].mean() - confidences[inside].mean())
    return error


def test_the_error_is_the_papers_formula() -> None:
    numbers = np.random.default_rng(0)
    confidences, correct = numbers.uniform(0.1, 1, 1000), numbers.uniform(size=1000) < 0.6
    assert measure_calibration(confidences, correct).error == pytest.approx(by_the_paper(confidences, correct))


def test_a_model_that_is_as_sure_as_it_is_right_has_no_error() -> None:
    assert measure_calibration(np.full(10, 0.5), np.arange(10) % 2 == 0).error == 0


def test_a_model_that_is_sure_and_always_wrong_has_the_error_one() -> None:
    found = measure_calibration(np.ones(4, np.float32), np.zeros(4, bool))
    assert found.error == 1
    assert [each.images for each in found.bins] == [0] * (NUM_BINS - 1) + [4]


def test_images_without_a_finite_confidence_are_left_out() -> None:
    found = measure_calibration(np.array([np.nan, 0.5]), np.array([True, True]))
    assert (sum(each.images for each in found.bins), found.error) == (1, 0.5)


def test_no_image_has_no_error() -> None:
    assert measure_calibration(np.empty(0), np.empty(0, bool)).error == 0
