"""Which result is better, and which is good enough."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import pytest

from train.config import schema
from train.evaluation.metrics import EvaluationResult, is_better, reaches_target

GOOD = EvaluationResult(accuracy=0.9, loss=0.3, samples=10, top5_accuracy=1.0, macro_f1=0.8, recall=(0.9, None))
BAD = EvaluationResult(accuracy=0.5, loss=1.3, samples=10, top5_accuracy=0.7, macro_f1=0.2, recall=(0.5, None))


@pytest.mark.parametrize("metric", schema.METRICS)
def test_the_better_one_wins_by_every_metric_and_equal_ones_do_not(metric: str) -> None:
    assert is_better(metric, GOOD, BAD)
    assert not is_better(metric, BAD, GOOD)
    assert not is_better(metric, GOOD, GOOD)


@pytest.mark.parametrize("metric", schema.METRICS)
def test_a_target_is_reached_when_it_is_met_exactly(metric: str) -> None:
    assert reaches_target(metric, GOOD, getattr(GOOD, metric))
    assert reaches_target(metric, GOOD, getattr(BAD, metric))
    assert not reaches_target(metric, BAD, getattr(GOOD, metric))


@pytest.mark.parametrize("metric", schema.METRICS)
def test_anything_is_better_than_nothing(metric: str) -> None:
    assert is_better(metric, BAD, None)


def test_a_number_is_better_than_one_that_was_not_measured_or_is_undefined() -> None:
    for missing in (replace(GOOD, macro_f1=None), replace(GOOD, macro_f1=math.nan)):
        assert is_better("macro_f1", BAD, missing)
        assert not is_better("macro_f1", missing, BAD)
        assert not is_better("macro_f1", missing, None)
        assert not reaches_target("macro_f1", missing, 0.0)


def test_an_undefined_loss_reaches_nothing() -> None:
    spoiled = replace(GOOD, loss=math.nan)
    assert not reaches_target("loss", spoiled, 1e9)
    assert not is_better("loss", spoiled, BAD)


def test_a_result_comes_back_from_json_as_it_was() -> None:
    assert EvaluationResult(**json.loads(json.dumps(asdict(GOOD)))) == GOOD


def test_an_older_versions_result_still_comes_back() -> None:
    found = EvaluationResult(accuracy=0.5, loss=1.5, samples=8)
    assert (found.macro_f1, found.recall) == (None, None)
