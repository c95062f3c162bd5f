"""Several labels for each image: average precision, thresholds and the metrics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from evaluations import evaluate

from train.tasks.multi_label import MultiLabel, average_precision, best_threshold


def precision_by_definition(scores: Sequence[float], labels: Sequence[int]) -> float:
    """Step by step: for each threshold, the precision there times the recall that it adds."""
    total, before = 0.0, 0.0
    for threshold in sorted(set(scores), reverse=True):
        chosen = [label for score, label in zip(scores, labels, strict=True) if score >= threshold]
        recall = sum(chosen) / sum(labels)
        total, before = total + (recall - before) * sum(chosen) / len(chosen), recall
    return total


def test_average_precision_is_that_of_its_definition() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        scores, labels = generator.integers(0, 9, 30) / 8, generator.integers(0, 2, 30)
        expected = precision_by_definition(scores.tolist(), labels.tolist())
        assert average_precision(scores, labels == 1) == pytest.approx(expected)


def test_average_precision_of_known_samples() -> None:
    """The example of scikit-learn's documentation of average_precision_score: 0.83."""
    scores = np.array([0.1, 0.4, 0.35, 0.8])
    assert average_precision(scores, np.array([False, False, True, True])) == pytest.approx(5 / 6)


def test_a_label_without_a_sample_has_no_average_precision() -> None:
    assert average_precision(np.array([0.5, 0.1]), np.array([False, False])) is None


def test_the_tuned_threshold_separates_what_can_be_separated() -> None:
    assert best_threshold(np.array([0.1, 0.2, 0.3, 0.4]), np.array([False, False, True, True])) == pytest.approx(0.25)


def test_several_labels_are_measured() -> None:
    outputs = torch.tensor([[2.0, -1.0, -3.0], [1.0, 1.0, -3.0], [-1.0, 2.0, -3.0]])
    labels = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    result, _ = evaluate(MultiLabel(classes=("a", "b", "c")), outputs, labels)
    assert result.average_precision == (1.0, 1.0, None)
    assert result.values["map"] == 1.0
    assert result.values["macro_f1"] == pytest.approx((2 / 3 + 1) / 2)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs, labels)
    assert result.values["loss"] == pytest.approx(float(loss))
