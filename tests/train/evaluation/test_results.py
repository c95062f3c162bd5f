"""Scores as people and programs read them, which result is better, and which is good enough."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from train.evaluation import results
from train.evaluation.results import EvaluationResult, is_better, reaches_target
from train.metrics import METRICS, metrics_of, wilson_interval

EVEN = EvaluationResult.from_json(
    {"accuracy": 0.75, "loss": 0.5, "samples": 8, "top5_accuracy": 1.0, "macro_f1": 0.74, "recall": (0.8, 0.75, 0.7)}
)
UNEVEN = replace(EVEN, values={**EVEN.values, "macro_f1": 0.5}, recall=(0.95, 0.2, None))
OLD = EvaluationResult.from_json({"accuracy": 0.75, "loss": 0.5, "samples": 8})
CLASSES = ("cat", "dog", "a-very-long-name-of-a-class")
MATRIX = [[19, 1, 0], [8, 2, 0], [0, 0, 0]]
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


@pytest.mark.parametrize(
    ("result", "metric", "more"),
    [
        (EVEN, "accuracy", ""),
        (OLD, "macro_f1", ""),
        (UNEVEN, "accuracy", ", macro F1 0.500"),
        (EVEN, "macro_f1", ", macro F1 0.740"),
        (EVEN, "top5_accuracy", ", top-5 100.00%"),
    ],
    ids=["accuracy-tells-all", "not-measured", "far-apart", "asked-for", "top-5-asked-for"],
)
def test_a_line_says_what_accuracy_hides_or_the_metric_asks_for(
    result: EvaluationResult, metric: str, more: str
) -> None:
    assert results.format_epoch_line(result, metric) == f"val accuracy 75.00%, val loss 0.500{more}"


def test_the_end_names_the_weak_classes_of_uneven_results_only() -> None:
    assert "weak classes" not in results.metric_rows(EVEN, CLASSES)
    assert results.metric_rows(UNEVEN, CLASSES)["weak classes"] == "dog 20.0% (recall)"


def test_the_end_shows_top_five_where_there_are_more_classes() -> None:
    assert "top-5" not in results.metric_rows(EVEN, CLASSES)
    six = replace(EVEN, recall=(0.7,) * 6)
    assert results.metric_rows(six, tuple("abcdef"))["top-5"] == "100.00%"


def test_an_older_versions_result_shows_what_it_has() -> None:
    assert list(results.metric_rows(OLD, CLASSES)) == ["accuracy"]


@pytest.mark.parametrize(
    ("metric", "score"),
    [
        ("accuracy", "75.00%"),
        ("top5_accuracy", "top-5 100.00%"),
        ("macro_f1", "macro F1 0.7400"),
        ("loss", "loss 0.5000"),
    ],
)
def test_the_best_evaluation_is_told_by_the_runs_own_metric(metric: str, score: str) -> None:
    assert results.describe_best(EVEN, metric, step=1200, epoch=12) == f"{score} at step 1,200 (epoch 12)"


def test_the_record_holds_recall_where_it_does_not_flood_the_file() -> None:
    assert results.metrics_to_log(EVEN)["recall"] == (0.8, 0.75, 0.7)
    assert "recall" not in results.metrics_to_log(replace(EVEN, recall=(0.5,) * 101))
    assert results.metrics_to_log(OLD) == {"accuracy": 0.75, "loss": 0.5, "samples": 8}


def test_a_table_has_a_line_for_each_class() -> None:
    assert results.format_confusion_table(UNEVEN, CLASSES, MATRIX) == (
        "   class             recall   0  1  2\n"
        "0  cat                95.0%  19  1  0\n"
        "1  dog                20.0%   8  2  0\n"
        "2  a-very-long-nam…       -   0  0  0"
    )


def test_the_matrix_file_is_json_with_a_line_for_each_class() -> None:
    text = results.confusion_json(7, CLASSES, MATRIX)
    assert json.loads(text) == {"step": 7, "classes": list(CLASSES), "matrix": MATRIX}
    assert "[8, 2, 0],\n" in text


def test_json_is_one_line_without_undefined_numbers() -> None:
    text = results.result_to_json(replace(UNEVEN, values={**UNEVEN.values, "loss": float("nan")}), MATRIX, {"step": 7})
    event = json.loads(text)
    assert (event["step"], event["loss"], event["recall"], event["confusion"]) == (7, None, [0.95, 0.2, None], MATRIX)
    assert "\n" not in text


ODD = ("new\nline", "\x1b[31mred", "\udcff")


def test_names_that_end_a_line_or_that_a_terminal_obeys_are_shown_as_python_writes_them() -> None:
    text = results.metric_rows(UNEVEN, ODD)["weak classes"] + results.format_confusion_table(UNEVEN, ODD, MATRIX)
    assert text.replace("\n", "").isprintable()
    assert len(text.splitlines()) == 4
    assert "new\\nline" in text


def test_names_whose_bytes_are_no_text_are_told_in_json_that_every_reader_takes() -> None:
    for text in (results.confusion_json(1, ODD, MATRIX), results.result_to_json(UNEVEN, MATRIX, {"classes": ODD})):
        assert json.loads(text.encode())["classes"] == [*ODD]


OF_OTHER_TASKS = [
    EvaluationResult(
        samples=3,
        values={"map": 0.5, "macro_f1": 0.25, "loss": 0.5},
        task="multi_label",
        average_precision=(0.9, None, 0.1),
        thresholds=(0.5, 0.5, 0.25),
    ),
    EvaluationResult(samples=3, values={"mae": 1234.567, "r2": -0.5, "loss": 1.5}, task="regression"),
]


@pytest.mark.parametrize("result", [GOOD, *OF_OTHER_TASKS])
def test_a_result_comes_back_from_json_as_it_was(result: EvaluationResult) -> None:
    assert EvaluationResult.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_the_lines_of_an_epoch_have_the_tasks_own_metrics() -> None:
    assert [
        results.format_epoch_line(result, metric) for result, metric in zip(OF_OTHER_TASKS, ("map", "mae"), strict=True)
    ] == [
        "val mAP 50.00%, val loss 0.500",
        "val MAE 1235, val R² -0.500, val loss 1.500",
    ]


def test_the_weakest_labels_are_named() -> None:
    rows = results.metric_rows(OF_OTHER_TASKS[0], ("cat", "dog", "sofa"))
    assert rows["weak classes"] == "sofa 10.0% (average precision)"
    assert rows["mAP"] == "50.00% of 3 validation images, loss 0.5000"


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


def test_an_older_versions_result_still_comes_back() -> None:
    result = EvaluationResult.from_json({"accuracy": 0.5, "loss": 1.5, "samples": 8})
    assert (result.values["macro_f1"], result.recall) == (None, None)


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
