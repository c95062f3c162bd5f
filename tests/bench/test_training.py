"""Trainings that are timed one after the other or in turns; one that ends does not end the bench."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stand_ins import on_cpu, replaced

from bench import training
from bench.processes import Program
from bench.training import Speed, TimedTraining
from entrypoint import ExitCode, Failure


def three(folder: Path) -> list[TimedTraining]:
    options = on_cpu(folder)
    return [
        TimedTraining(name=name, program=training.training_program(options, name, "train.global_batch_size=8"))
        for name in "abc"
    ]


@pytest.mark.parametrize(("in_turns", "order"), [(True, "abccba"), (False, "aabbcc")])
def test_blocks_are_run_in_turns_where_all_are_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_turns: bool, order: str
) -> None:
    seen = replaced(monkeypatch, lambda words: 0.5)
    speeds = training.time_trainings(on_cpu(tmp_path), three(tmp_path), rounds=2, in_turns=in_turns)
    assert "".join(seen) == order
    assert [speed.images_per_s().value for speed in speeds] == [16.0] * 3
    assert {speed.memory for speed in speeds} == {10**9}


@pytest.mark.parametrize("in_turns", [True, False])
def test_one_that_ends_tells_its_own_error_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_turns: bool
) -> None:
    replaced(monkeypatch, lambda words: None if "run.name=b" in words else 0.5)
    speeds = training.time_trainings(on_cpu(tmp_path), three(tmp_path), rounds=2, in_turns=in_turns)
    assert [speed.missing for speed in speeds] == [None, "out of GPU memory", None]
    assert speeds[2].relative_to(speeds[0]).value == 1.0


@pytest.mark.parametrize(("in_turns", "value", "low"), [(True, 1.0, 0.5), (False, 2.0, 0.25)])
def test_blocks_are_pairs_only_where_they_took_turns(in_turns: bool, value: float, low: float) -> None:
    timed, both = (
        TimedTraining(name="w", program=Program(name="w", command=[], environ={})),
        ((1.0, 1.0, 4.0), (1.0, 4.0, 2.0)),
    )
    ours, base = (Speed(training=timed, seconds=seconds, images=8, in_turns=in_turns) for seconds in both)
    ratio = ours.relative_to(base)
    assert (ratio.value, ratio.low) == (value, low)


def test_without_an_error_of_its_own_the_first_line_is_told() -> None:
    assert training.failure_reason(Failure("w", found="it hung up\nmore", fix="f", code=ExitCode.PEER)) == "it hung up"
    assert training.failure_reason(Failure("w", fix="f", code=ExitCode.PEER)) == "w"


def test_a_pinned_side_runs_on_its_cpus_alone() -> None:
    cpu = min(os.sched_getaffinity(0))
    say = "import json, os, sys; print(json.dumps([sorted(os.sched_getaffinity(0)), sys.argv[1:]]))"
    side = training.pin_to_cpus(Program(name="s", command=[sys.executable, "-c", say, "word"], environ={}), [cpu])
    printed = subprocess.run(side.command, capture_output=True, timeout=60, check=True).stdout
    assert json.loads(printed) == [[cpu], ["word"]]
