"""What a run left, whole or not."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from made_up_runs import CLASSES, make_run

from entrypoint import ExitCode, Failure
from train.report import read


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
    assert (run.events, run.facts, run.confusion, run.ending) == ({}, {}, None, None)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Failure) as refused:
        read.load_run(tmp_path)
    assert refused.value.code == ExitCode.NO_INPUT


def test_two_runs_of_the_same_name_are_told_apart_and_none_is_taken_twice(tmp_path: Path) -> None:
    typed = [str(make_run(tmp_path / place / "run")) for place in ("a", "b")]
    assert [run.name for run in read.load_runs([*typed, typed[0] + "/"])[0]] == typed


def test_of_several_what_is_no_run_is_left_out_by_name(tmp_path: Path) -> None:
    there = str(make_run(tmp_path / "there"))
    runs, missing = read.load_runs([there, str(tmp_path / "gone")])
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
