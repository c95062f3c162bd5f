"""What a run left, whole or not, is what a report reads, and the few figures that a run is judged by."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from jobs import ALONE, TINY, forget_accelerate
from made_up_runs import CLASSES, found_finished, go_on, history, make_run

from entrypoint import ExitCode, Failure, Handover
from entrypoint.run_errors import RunErrors
from train import session
from train.config import environment, load
from train.inference import checkpoints, model_card
from train.inference.model_code import ModelCode
from train.metrics import DEFAULT_METRIC
from train.rank_context import RankContext
from train.report import compare, page, read
from train.report import read as reading
from train.report.document import Report
from train.report.read import RecordedRun


def test_a_finished_run_is_read_whole(tmp_path: Path) -> None:
    run = read.load_run(make_run(tmp_path / "run", ending={"code": 0, "step": 20, "cause": "finished"}))
    assert (run.name, run.world_size, run.steps_per_epoch, run.missing) == ("run", 2, 10, ())
    assert run.config["data.samples"] == 1000
    assert run.column("eval", "accuracy") == ([10.0, 20.0], [0.5, 0.75])
    assert run.ending is not None
    assert run.confusion is not None
    assert run.confusion.classes == CLASSES


def test_a_run_that_has_just_begun_is_one_too(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("run: {name: new}\n")
    run = read.load_run(tmp_path)
    assert run.column("train", "loss") == ([], [])
    assert run.missing == ("run.json is not there or cannot be read", "metrics.jsonl is not there or cannot be read")


def test_lines_that_make_no_sense_are_gaps_or_left_out(tmp_path: Path) -> None:
    lines = ['{"event": "train", "step": 2, "loss": "low"}', "{torn", "[" * 100_000, '{"event": "train", "loss": 1}']
    lines += ['{"event": "train", "step": 1, "loss": 0.5}', '{"event": "train", "step": -3, "loss": 1e999}']
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    steps, values = read.load_run(tmp_path).column("train", "loss")
    assert (steps, values[0], math.isnan(values[1])) == ([1.0, 2.0], 0.5, True)


@pytest.mark.parametrize("value", [None, "1", True, math.inf, 10**400, [1]])
def test_what_is_no_finite_number_is_none(value: object) -> None:
    assert math.isnan(read.finite_or_nan(value))


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        "[" * 100_000,
        '{"classes": ["a"], "matrix": [[1, 2]]}',
        '{"classes": ["a"], "matrix": [[-1]]}',
        "null",
    ],
)
def test_a_matrix_that_is_none_is_left_out(tmp_path: Path, text: str) -> None:
    (make_run(tmp_path / "run") / "confusion.json").write_text(text)
    assert read.load_run(tmp_path / "run").confusion is None


def test_pipes_in_the_place_of_files_are_never_waited_for(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", ending={})
    for name in ("metrics.jsonl", "confusion.json", "run.json", "errors/exit.json"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
    run = read.load_run(folder)
    assert (run.metrics.events, run.facts, run.confusion, run.ending) == ({}, {}, None, None)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Failure) as refused:
        read.load_run(tmp_path)
    assert refused.value.code == ExitCode.NO_INPUT


def test_two_runs_of_the_same_name_are_told_apart_and_none_is_taken_twice(tmp_path: Path) -> None:
    typed = [str(make_run(tmp_path / name / "run")) for name in ("a", "b")]
    assert [run.name for run in read.load_runs([*typed, typed[0] + "/"])[0]] == typed


def test_of_several_what_is_no_run_is_left_out_by_name(tmp_path: Path) -> None:
    present = str(make_run(tmp_path / "there"))
    runs, missing = read.load_runs([present, str(tmp_path / "gone")])
    assert ([run.name for run in runs], missing) == (
        ["there"],
        [f"{tmp_path / 'gone'} is not a run's folder: it does not exist"],
    )
    with pytest.raises(Failure, match="not a run's folder"):
        read.load_runs([str(tmp_path / "gone"), str(tmp_path / "lost")])


def test_names_that_lead_nowhere_are_refused_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("loop", "x" * 300):
        with pytest.raises(Failure, match="not a run's folder"):
            read.load_runs([str(tmp_path / name)])


def test_facts_of_another_shape_are_none(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "run.json").write_text(json.dumps({"starts": [7, {"step": "x"}], "world": [1]}))
    run = read.load_run(folder)
    assert (run.starts, run.world_size) == ([], None)


def test_a_start_that_was_refused_after_the_end_did_not_end_the_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", ending={"code": 65, "step": None, "cause": "another config"})
    facts = json.loads((folder / "run.json").read_text())
    facts["starts"][0]["ended"] = {"code": 0, "cause": "finished"}
    facts["starts"].append({"step": None, "ended": {"code": 65, "cause": "another config"}})
    (folder / "run.json").write_text(json.dumps(facts))
    run = read.load_run(folder)
    assert run.ending is not None
    assert (run.ending.code, run.ending.cause, len(run.starts)) == (0, "finished", 1)


def test_keys_of_another_versions_configuration_are_not_known_to_be_idle(tmp_path: Path) -> None:
    ours, other = make_run(tmp_path / "ours", settings=["optim.name=adamw"]), make_run(tmp_path / "other")
    (other / "config.yaml").write_text("optim: {name: adamw, momentum: 0.9, unheard: 1}\n")
    assert "optim.momentum" in read.load_run(ours).unused_keys
    assert read.load_run(other).unused_keys == frozenset()


def changed_run(folder: Path, **changes: Any) -> RecordedRun:
    """One that was read back."""
    return read.load_run(make_run(folder / "run", **changes))


def test_speed_is_without_the_first_log_point(tmp_path: Path) -> None:
    throughput = read.measured_throughput(changed_run(tmp_path))
    assert throughput is not None
    assert (throughput.images_per_s, throughput.low, throughput.high, throughput.warm_up) == (2000, 2000, 2000, False)


def test_a_start_without_a_log_point_leaves_the_speed_to_the_one_before(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    go_on(folder, step=20, ranks=8)
    throughput = read.measured_throughput(read.load_run(folder))
    assert throughput is not None
    assert (throughput.images_per_s, throughput.ranks, read.num_ranks(read.load_run(folder))) == (2000, 2, 2)


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
    throughput = read.measured_throughput(changed_run(tmp_path, events=history(1000)[:1]))
    assert read.format_throughput(throughput) == "100 images/s (first steps only)"


def test_a_run_without_a_log_point_has_no_speed(tmp_path: Path) -> None:
    empty = changed_run(tmp_path, events=[])
    assert (read.measured_throughput(empty), read.training_seconds(empty), read.best_evaluation(empty)) == (
        None,
        None,
        None,
    )
    assert read.format_throughput(None) == read.format_duration(None) == DEFAULT_METRIC.format(None) == "not measured"


def test_training_seconds_are_steps_times_batch_over_speed(tmp_path: Path) -> None:
    assert read.training_seconds(changed_run(tmp_path)) == pytest.approx(2 * 256 / 200 + 18 * 256 / 2000)


def test_steps_after_the_last_log_point_are_in_the_training_time(tmp_path: Path) -> None:
    logged = read.training_seconds(changed_run(tmp_path / "logged"))
    evaluation = {"event": "eval", "step": 25, "epoch": 3, "accuracy": 0.5, "loss": 1.0, "samples": 10}
    longer = read.training_seconds(changed_run(tmp_path / "longer", events=[*history(2000), evaluation]))
    assert logged is not None
    assert longer == pytest.approx(logged + 5 * 256 / 2000)


def test_the_best_is_by_the_runs_own_metric(tmp_path: Path) -> None:
    assert read.best_evaluation(changed_run(tmp_path)) == (0.75, 20)
    assert read.best_evaluation(changed_run(tmp_path / "other", settings=["eval.metric=loss"])) == (0.05, 20)


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        ({"code": 0, "step": 20, "cause": "finished"}, "finished at step 20 of 20"),
        ({"code": 75, "step": 20, "cause": "SIGUSR1"}, "stopped at step 20 of 20 (exit code 75): SIGUSR1"),
        ({"code": 71, "step": 8, "cause": "out of memory"}, "failed at step 8 of 20 (exit code 71): out of memory"),
        ({"code": 71, "step": "x", "cause": "no step"}, "failed at step 20 of 20 (exit code 71): no step"),
        (None, "unfinished, at step 20 of 20: it is running, or was killed"),
    ],
)
def test_how_it_ended_is_said(tmp_path: Path, ending: dict[str, Any] | None, text: str) -> None:
    assert read.describe_status(changed_run(tmp_path, ending=ending)) == text


def test_a_run_that_was_killed_while_it_saved_says_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    RunErrors.in_run(folder).write_stopping(by="SIGUSR1", save_s=100.0)
    assert "killed before its checkpoint was committed" in read.describe_status(read.load_run(folder))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        ({}, "none"),
        ({"start": 600, "step": "auto"}, "start=600, step=auto"),
        ([1, "a"], "1, a"),
        ({"hub_token": "abc", "of": "https://me:abc@h"}, "hub_token=(not shown), of=https://(not shown)@h"),
    ],
)
def test_settings_are_for_people(value: object, text: str) -> None:
    assert read.format_setting(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(1.25, "1.2 s"), (59.99, "60.0 s"), (245, "4 min 05 s"), (11_220, "3 h 07 min")]
)
def test_durations_are_for_people(seconds: float, text: str) -> None:
    assert read.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.123456, "0.123"), (99.95, "100"), (999.4, "999"), (999.7, "1,000"), (134_400.0, "134,400")]
)
def test_a_number_has_three_digits_that_count_and_no_exponent(value: float, text: str) -> None:
    assert read.format_number(value) == text


def start(folder: Path) -> None:
    """Train in this process, or find that it was done."""
    config = load.load_config(None, [*TINY, f"run.output_dir={folder.parent}", f"run.name={folder.name}"])
    environ = Handover(hosts=("node01",), launcher="local").to_environ()
    variables = environment.remove_conflicting_variables(environ, download=False)
    forget_accelerate()
    try:
        session.train_on_rank(
            config,
            RankContext(world=ALONE, folder=folder),
            environ,
            variables=variables,
            argv=["train"],
            started_at=0.0,
        )
    finally:
        forget_accelerate()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RecordedRun:
    """Eight steps, read back."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    start(folder)
    return reading.load_run(folder)


@pytest.fixture(scope="module")
def report(run: RecordedRun) -> Report:
    """Its report."""
    return page.build_report([run], [], anyway=False, byline="now")


def test_every_value_that_runs_are_compared_by_is_recorded(run: RecordedRun) -> None:
    compared = {name: read(run) for name, read in compare.MUST_MATCH.items()}
    assert reading.NOT_RECORDED not in str(compared)
    assert compare.find_differences([run, run]).alike


def test_nothing_is_missing_but_gpus(run: RecordedRun, report: Report) -> None:
    assert run.missing == ()
    assert report.cautions() == []
    assert str(report).lower().count("not measured") == 1


def test_the_curves_and_the_matrix_are_there(report: Report) -> None:
    names = ["curves-loss", "curves-scores", "curves-learning-rate", "curves-speed", "confusion"]
    assert [picture.name for picture in report.pictures()] == names


def described(folder: Path) -> tuple[dict[str, str], str, str, str]:
    """What the report and the card say of where it was trained, and how it ended."""
    run, checkpoint = reading.load_run(folder), checkpoints.choose_checkpoint(str(folder))
    about = model_card.collect_model_facts(checkpoints.load_config(checkpoint, None, ())[0], checkpoint)
    values = {name: read(run) for name, read in compare.MUST_MATCH.items()}
    card = model_card.render_card(about, "model", ModelCode(imports=(), lines=()))
    return values, reading.describe_world(run), reading.describe_status(run), card


def test_a_start_of_a_finished_run_on_another_machine_changes_no_word_of_the_training(
    run: RecordedRun, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    recorded = json.loads((folder / "run.json").read_text())
    recorded["training"] |= {"device": "NVIDIA H100", "precision": "bf16"}
    recorded["world"]["world_size"] = recorded["starts"][0]["world_size"] = 8
    (folder / "run.json").write_text(json.dumps(recorded | {"versions": {"torch": "2.0"}}))
    before = described(folder)
    start(folder)
    assert described(folder) == before
    assert (before[0]["device"], before[1]) == ("NVIDIA H100", "8 ranks on 1 node")
    assert all(word in before[3] for word in ("NVIDIA H100", "bf16", "| torch | 2.0 |"))
