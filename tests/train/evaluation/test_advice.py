"""After a poor result one line says what to try."""

from __future__ import annotations

import pytest

from train.config import load
from train.evaluation.advice import advise
from train.evaluation.results import EvaluationResult

WEIGHTS = "trained weights (docs/fine-tuning.md)"
BALANCE = "optim.class_weights=balanced or data.sampling=balanced"
EPOCHS = "more epochs (as below)"
RATE = "another optim.lr (`train find-lr` suggests one)"


@pytest.mark.parametrize(
    ("task", "values", "settings", "improves", "ways"),
    [
        ("classification", {"accuracy": 0.54, "balanced_accuracy": 0.54}, [], True, [WEIGHTS, EPOCHS]),
        ("classification", {"accuracy": 0.9, "balanced_accuracy": 0.2}, [], False, [WEIGHTS, BALANCE]),
        ("classification", {"accuracy": 0.9, "balanced_accuracy": 0.2}, ["data.sampling=balanced"], False, [WEIGHTS]),
        ("classification", {"accuracy": 0.1, "balanced_accuracy": 0.1}, ["model.weights=w.pth"], False, [RATE]),
        ("multi_label", {"map": 0.4}, [], False, [WEIGHTS]),
        ("regression", {"r2": -3.0}, ["model.weights=w.pth"], True, [EPOCHS]),
        ("regression", {"r2": 0.2}, ["model.weights=w.pth"], False, [RATE]),
    ],
    ids=str,
)
def test_a_poor_result_is_followed_by_what_may_help(
    task: str, values: dict[str, float], settings: list[str], improves: bool, ways: list[str]
) -> None:
    result = EvaluationResult(samples=100, values=values, task=task)
    advice = advise(load.load_config(None, settings), result, num_classes=10, improves=improves, last=result)
    assert advice == f"the result is poor: {'; '.join(ways)}"


@pytest.mark.parametrize(
    ("task", "values", "num_classes"),
    [
        ("classification", {"accuracy": 0.55, "balanced_accuracy": 0.551}, 10),
        ("classification", {"accuracy": 0.8, "balanced_accuracy": 0.8}, 2),
        ("classification", {"accuracy": 1.0, "balanced_accuracy": 1.0}, 1),
        ("classification", {"accuracy": 0.1}, 10),  # of an older version
        ("multi_label", {"map": 0.6}, 4),
        ("regression", {"r2": 0.5}, 1),
        ("regression", {"r2": float("nan")}, 1),
    ],
    ids=str,
)
def test_another_result_is_followed_by_nothing(task: str, values: dict[str, float], num_classes: int) -> None:
    result = EvaluationResult(samples=100, values=values, task=task)
    assert advise(load.load_config(None, []), result, num_classes=num_classes, improves=True, last=result) is None


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        (["optim.lr=5"], "a lower one than 5, or auto, which would choose another"),
        ([], "a lower one"),
    ],
)
def test_a_last_loss_far_above_that_of_guessing_leads_to_the_learning_rate(settings: list[str], rate: str) -> None:
    best = EvaluationResult(samples=100, values={"accuracy": 0.3, "balanced_accuracy": 0.3, "loss": 3.0})
    last = EvaluationResult(samples=100, values={"accuracy": 0.1, "balanced_accuracy": 0.1, "loss": 1_145_841.0})
    advice = advise(load.load_config(None, settings), best, num_classes=10, improves=False, last=last)
    assert advice == (
        f"the last loss, 1.146e+06, is far above that of guessing: optim.lr: {rate} (`train find-lr` suggests one)"
    )


@pytest.mark.parametrize(("f1", "settings"), [(0.6, []), (0.2, ["eval.threshold=auto"])])
def test_labels_that_the_threshold_divides_well_are_followed_by_nothing(f1: float, settings: list[str]) -> None:
    result = EvaluationResult(samples=100, values={"map": 0.7, "macro_f1": f1}, task="multi_label")
    config = load.load_config(None, settings)
    assert advise(config, result, num_classes=4, improves=False, last=result) is None


def test_labels_that_the_threshold_divides_badly_lead_to_one_of_each_label() -> None:
    result = EvaluationResult(samples=100, values={"map": 0.7, "macro_f1": 0.4}, task="multi_label")
    advice = advise(load.load_config(None, []), result, num_classes=4, improves=False, last=result)
    assert advice is not None
    assert advice.endswith("eval.threshold=auto, in a new run")


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_scores_that_are_not_finite_are_named(loss: float) -> None:
    result = EvaluationResult(samples=100, values={"mae": loss, "r2": loss, "loss": loss}, task="regression")
    advice = advise(load.load_config(None, []), result, num_classes=1, improves=False, last=result)
    assert advice == "the scores are not finite numbers: a lower optim.lr, or train.clip_grad_norm=1.0"
