"""Metrics of several labels and of numbers: their values, and that no order of the samples changes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from entrypoint import Failure
from train.evaluation.results import EvaluationResult, format_epoch_line, metric_rows
from train.evaluation.scores import Counter
from train.tasks import TargetScale
from train.tasks.multi_label import MultiLabel, average_precision, best_threshold
from train.tasks.regression import Regression

CPU = torch.device("cpu")
AGES = Regression(classes=("age",), target=TargetScale(mean=10.0, std=2.0))


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


def add(counter: Any, outputs: Tensor, labels: Tensor) -> None:
    counter.add(lambda images: images, {"image": outputs, "label": labels})


def counted(counter: Any, batches: Sequence[tuple[Tensor, Tensor]]) -> EvaluationResult:
    for outputs, labels in batches:
        add(counter, outputs, labels)
    result: EvaluationResult
    result, matrix = counter.read(lambda sums: sums, lambda own: [own])
    assert matrix is None
    return result


def labels_counter(threshold: Any = 0.5) -> Counter:
    return MultiLabel(classes=("a", "b", "c")).build_counter(CPU, threshold=threshold)


def errors_counter() -> Counter:
    return AGES.build_counter(CPU, threshold=0.5)


def test_several_labels_are_measured() -> None:
    outputs = torch.tensor([[2.0, -1.0, -3.0], [1.0, 1.0, -3.0], [-1.0, 2.0, -3.0]])
    labels = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0]])
    result = counted(labels_counter(), [(outputs, labels)])
    assert result.average_precision == (1.0, 1.0, None)
    assert result.values["map"] == 1.0
    assert result.values["macro_f1"] == pytest.approx((2 / 3 + 1) / 2)
    loss = torch.nn.functional.binary_cross_entropy_with_logits(outputs, labels)
    assert result.values["loss"] == pytest.approx(float(loss))


def test_numbers_are_measured_in_their_own_unit() -> None:
    outputs, labels = torch.tensor([[0.0], [1.0], [-1.0]]), torch.tensor([10.0, 14.0, 7.0])
    result = counted(errors_counter(), [(outputs, labels)])
    assert result.values["mae"] == pytest.approx((0 + 2 + 1) / 3)
    mean = 31 / 3
    variation = sum((value - mean) ** 2 for value in (10, 14, 7))
    assert result.values["r2"] == pytest.approx(1 - 5 / variation)
    assert result.values["loss"] == pytest.approx((0 + 1 + 0.25) / 3)


def test_equal_numbers_have_no_r2() -> None:
    result = counted(errors_counter(), [(torch.zeros(2, 1), torch.full((2,), 3.0))])
    assert math.isnan(result.values["r2"] or 0.0)


@pytest.mark.parametrize("task", ["multi_label", "regression"])
def test_the_metrics_do_not_depend_on_which_rank_has_which_batch(task: str) -> None:
    """Bit by bit, with many equal scores."""
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(-4, 5, (90, 3), generator=generator) / 4
    labels = torch.randint(0, 2, (90, 3), generator=generator).float()
    if task == "regression":
        numbers, labels = numbers[:, :1], 7.3 * labels[:, 0] + numbers[:, 1]
    batches = list(zip(numbers.split(7), labels.split(7), strict=True))

    def on(world_size: int) -> EvaluationResult:
        counters: list[Any] = [
            labels_counter("auto") if task == "multi_label" else errors_counter() for _ in range(world_size)
        ]
        for rank, counter in enumerate(counters):
            for outputs, of_batch in batches[rank::world_size]:
                add(counter, outputs, of_batch)
        stored: list[Any] = []
        for counter in counters:
            with pytest.raises(Failure):
                counter.read(lambda sums: sums, lambda own: stored.append(own) or [])
        result: EvaluationResult = counters[0].read(lambda sums: sums, lambda own: stored)[0]
        return result

    assert on(1) == on(2) == on(3) == on(20)


def test_another_number_of_outputs_is_refused() -> None:
    with pytest.raises(Failure) as caught:
        add(labels_counter(), torch.zeros(2, 4), torch.zeros(2, 3))
    assert caught.value.code == 65


def test_no_sample_on_any_rank_is_refused() -> None:
    with pytest.raises(Failure) as caught:
        counted(labels_counter(), [])
    assert caught.value.what == "no validation image could be read"


RESULTS = [
    EvaluationResult(
        samples=3,
        values={"map": 0.5, "macro_f1": 0.25, "loss": 0.5},
        task="multi_label",
        average_precision=(0.9, None, 0.1),
        thresholds=(0.5, 0.5, 0.25),
    ),
    EvaluationResult(samples=3, values={"mae": 1234.567, "r2": -0.5, "loss": 1.5}, task="regression"),
]


@pytest.mark.parametrize("result", RESULTS)
def test_a_result_comes_back_from_json_as_it_was(result: EvaluationResult) -> None:
    assert EvaluationResult.from_json(result.to_json()) == result


def test_the_lines_of_an_epoch_have_the_tasks_own_metrics() -> None:
    assert [format_epoch_line(result, metric) for result, metric in zip(RESULTS, ("map", "mae"), strict=True)] == [
        "val mAP 50.00%, val loss 0.500",
        "val MAE 1235, val R² -0.500, val loss 1.500",
    ]


def test_the_weakest_labels_are_named() -> None:
    rows = metric_rows(RESULTS[0], ("cat", "dog", "sofa"))
    assert rows["weak classes"] == "sofa 10.0% (average precision)"
    assert rows["mAP"] == "50.00% of 3 validation images, loss 0.5000"
