"""The few figures that a run is judged by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_up_runs import found_finished, go_on, history, make_run

from entrypoint.run_errors import RunErrors
from train.metrics import DEFAULT_METRIC
from train.report import read
from train.report.read import RecordedRun


def run(folder: Path, **changes: Any) -> RecordedRun:
    """One that was read back."""
    return read.load_run(make_run(folder / "run", **changes))


def test_speed_is_without_the_first_log_point(tmp_path: Path) -> None:
    found = read.measured_throughput(run(tmp_path))
    assert found is not None
    assert (found.images_per_s, found.low, found.high, found.warm_up) == (2000, 2000, 2000, False)


def test_a_start_without_a_log_point_leaves_the_speed_to_the_one_before(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    go_on(folder, step=20, ranks=8)
    found = read.measured_throughput(read.load_run(folder))
    assert found is not None
    assert (found.images_per_s, found.ranks, read.num_ranks(read.load_run(folder))) == (2000, 2, 2)


def test_a_start_that_trained_nothing_changes_neither_speed_nor_place(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    before = read.load_run(folder)
    found_finished(folder, step=20)
    after = read.load_run(folder)
    assert (read.measured_throughput(after), read.describe_world(after)) == (
        read.measured_throughput(before),
        "2 ranks on 1 node",
    )


def test_a_single_log_point_is_said_to_hold_the_first_steps(tmp_path: Path) -> None:
    found = read.measured_throughput(run(tmp_path, events=history(1000)[:1]))
    assert read.format_throughput(found) == "100 images/s (first steps only)"


def test_a_run_without_a_log_point_has_no_speed(tmp_path: Path) -> None:
    empty = run(tmp_path, events=[])
    assert (read.measured_throughput(empty), read.training_seconds(empty), read.best_evaluation(empty)) == (
        None,
        None,
        None,
    )
    assert read.format_throughput(None) == read.format_duration(None) == DEFAULT_METRIC.format(None) == "not measured"


def test_training_seconds_are_steps_times_batch_over_speed(tmp_path: Path) -> None:
    assert read.training_seconds(run(tmp_path)) == pytest.approx(2 * 256 / 200 + 18 * 256 / 2000)


def test_steps_after_the_last_log_point_are_in_the_training_time(tmp_path: Path) -> None:
    logged = read.training_seconds(run(tmp_path / "logged"))
    evaluation = {"event": "eval", "step": 25, "epoch": 3, "accuracy": 0.5, "loss": 1.0, "samples": 10}
    longer = read.training_seconds(run(tmp_path / "longer", events=[*history(2000), evaluation]))
    assert logged is not None
    assert longer == pytest.approx(logged + 5 * 256 / 2000)


def test_the_best_is_by_the_runs_own_metric(tmp_path: Path) -> None:
    assert read.best_evaluation(run(tmp_path)) == (0.75, 20)
    assert read.best_evaluation(run(tmp_path / "other", settings=["eval.metric=loss"])) == (0.05, 20)


@pytest.mark.parametrize(
    ("ending", "said"),
    [
        ({"code": 0, "step": 20, "cause": "finished"}, "finished at step 20 of 20"),
        ({"code": 75, "step": 20, "cause": "SIGUSR1"}, "stopped at step 20 of 20 (exit code 75): SIGUSR1"),
        ({"code": 71, "step": 8, "cause": "out of memory"}, "failed at step 8 of 20 (exit code 71): out of memory"),
        ({"code": 71, "step": "x", "cause": "no step"}, "failed at step 20 of 20 (exit code 71): no step"),
        (None, "unfinished, at step 20 of 20: it is running, or was killed"),
    ],
)
def test_how_it_ended_is_said(tmp_path: Path, ending: dict[str, Any] | None, said: str) -> None:
    assert read.describe_status(run(tmp_path, ending=ending)) == said


def test_a_run_that_was_killed_while_it_saved_says_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    RunErrors.in_run(folder).write_stopping(by="SIGUSR1", save_s=100.0)
    assert "killed before its checkpoint was committed" in read.describe_status(read.load_run(folder))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "null"),
        ({}, "none"),
        ({"start": 600, "step": "auto"}, "start=600, step=auto"),
        ([1, "a"], "1, a"),
        ({"hub_token": "abc", "of": "https://me:abc@h"}, "hub_token=(not shown), of=https://(not shown)@h"),
    ],
)
def test_settings_are_for_people(value: object, said: str) -> None:
    assert read.format_setting(value) == said


@pytest.mark.parametrize(
    ("seconds", "said"), [(1.25, "1.2 s"), (59.99, "60.0 s"), (245, "4 min 05 s"), (11_220, "3 h 07 min")]
)
def test_durations_are_for_people(seconds: float, said: str) -> None:
    assert read.format_duration(seconds) == said


@pytest.mark.parametrize(
    ("value", "text"), [(0.123456, "0.123"), (99.95, "100"), (999.4, "999"), (999.7, "1,000"), (134_400.0, "134,400")]
)
def test_a_number_has_three_digits_that_count_and_no_exponent(value: float, text: str) -> None:
    assert read.format_number(value) == text
