"""Which result is better, and which is good enough."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from train.evaluation.results import EvaluationResult, is_better, reaches_target
from train.metrics import METRICS, metrics_of, wilson_interval

GOOD = EvaluationResult(
    samples=10,
    values={name: 0.9 if metric.higher_is_better else 0.3 for name, metric in metrics_of("classification").items()},
    recall=(0.9, None),
)
BAD = EvaluationResult(
    samples=10,
    values={name: 0.5 if metric.higher_is_better else 1.3 for name, metric in metrics_of("classification").items()},
    recall=(0.5, None),
)


def changed(result: EvaluationResult, **values: float | None) -> EvaluationResult:
    return replace(result, values={**result.values, **values})


@pytest.mark.parametrize("metric", metrics_of("classification"))
def test_the_better_one_wins_by_every_metric_and_equal_ones_do_not(metric: str) -> None:
    assert is_better(metric, GOOD, BAD)
    assert not is_better(metric, BAD, GOOD)
    assert not is_better(metric, GOOD, GOOD)


@pytest.mark.parametrize("metric", metrics_of("classification"))
def test_a_target_is_reached_when_it_is_met_exactly(metric: str) -> None:
    assert reaches_target(metric, GOOD, GOOD.values[metric])
    assert reaches_target(metric, GOOD, BAD.values[metric])
    assert not reaches_target(metric, BAD, GOOD.values[metric])


@pytest.mark.parametrize("metric", metrics_of("classification"))
def test_anything_is_better_than_nothing(metric: str) -> None:
    assert is_better(metric, BAD, None)


def test_a_number_is_better_than_one_that_was_not_measured_or_is_undefined() -> None:
    for missing in (changed(GOOD, macro_f1=None), changed(GOOD, macro_f1=math.nan)):
        assert is_better("macro_f1", BAD, missing)
        assert not is_better("macro_f1", missing, BAD)
        assert not is_better("macro_f1", missing, None)
        assert not reaches_target("macro_f1", missing, 0.0)


def test_an_undefined_loss_reaches_nothing() -> None:
    spoiled = changed(GOOD, loss=math.nan)
    assert not reaches_target("loss", spoiled, 1e9)
    assert not is_better("loss", spoiled, BAD)


def test_a_result_comes_back_from_json_as_it_was() -> None:
    assert EvaluationResult.from_json(json.loads(json.dumps(GOOD.to_json()))) == GOOD


def test_an_older_versions_result_still_comes_back() -> None:
    found = EvaluationResult.from_json({"accuracy": 0.5, "loss": 1.5, "samples": 8})
    assert (found.values["macro_f1"], found.recall) == (None, None)


def test_a_metric_of_another_version_is_left_out() -> None:
    assert EvaluationResult.from_json({**GOOD.to_json(), "kappa": 0.5}) == GOOD


@pytest.mark.parametrize(("share", "samples", "interval"), [(0.0, 10, (0.0, 0.2775)), (0.9, 1000, (0.8798, 0.9171))])
def test_the_interval_of_a_share_is_wilsons(share: float, samples: int, interval: tuple[float, float]) -> None:
    assert wilson_interval(share, samples) == pytest.approx(interval, abs=1e-4)


def test_only_a_proportion_of_counted_samples_has_an_interval() -> None:
    assert METRICS["accuracy"].format_interval(0.5, 100) == "40.4 to 59.6%"
    assert METRICS["macro_f1"].format_interval(0.5, 100) == ""
    assert METRICS["accuracy"].format_interval(0.5, None) == ""
    assert METRICS["accuracy"].format_interval(None, 100) == ""
