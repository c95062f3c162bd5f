"""Heartbeats and a clock become one verdict, also where several tasks watch their ranks."""

from __future__ import annotations

import json
import mmap
import os
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import worlds

from entrypoint.children import Child
from entrypoint.hang import (
    MAX_COUNTED_INTERVAL_S,
    PEER_ANSWER_TIMEOUT_S,
    START_SLACK_S,
    HangTimeouts,
    HangWatch,
    RankStatus,
    SilenceTimer,
    SupervisionPolicy,
    describe_hang,
    find_blocking_rank,
)
from entrypoint.heartbeat import PAGE_SIZE_BYTES, Heartbeat, HeartbeatChannel, HeartbeatRecord, Phase
from entrypoint.run_errors import RunError, RunErrors

LIMITS = HangTimeouts(start=600, step=None, evaluation=300, save=200, data=100)
BEAT = HeartbeatRecord(number=1, phase="step", point="forward", step=10, first=0, micro=1, at=0.0)
SILENT = RankStatus(
    rank=0, host="node01", gpu=0, phase="step", point="backward", step=812, micro=1, silent_s=40, limit_s=30, waits=True
)


def stepping(seconds: float, steps: int = 200) -> SilenceTimer:
    silence = SilenceTimer(LIMITS)
    for n in range(steps):
        silence.update(replace(BEAT, number=n, step=10 + n, at=n * seconds), n * seconds)
    return silence


@pytest.mark.parametrize(
    ("phase", "limit"),
    [("start", 600 + START_SLACK_S), ("evaluation", 300), ("save", 200), ("data", 100), ("step", 30)],
)
def test_each_phase_has_a_limit_of_its_own(phase: str, limit: float) -> None:
    assert LIMITS.limit_after(replace(BEAT, phase=phase), 0.0) == limit  # type: ignore[arg-type]


def test_the_agreement_of_the_ranks_belongs_to_the_step() -> None:
    assert LIMITS.limit_after(replace(BEAT, point="agreement"), 0.0) == 30


def test_the_first_step_belongs_to_the_start() -> None:
    assert LIMITS.limit_after(replace(BEAT, first=10), 0.0) == 600 + START_SLACK_S


@pytest.mark.parametrize(("seconds", "limit"), [(0.1, 30), (5.0, 50), (400.0, 1800)])
def test_what_a_step_may_take_is_found_out_within_bounds(seconds: float, limit: float) -> None:
    assert stepping(seconds).limit == limit


def test_a_saves_time_is_not_taken_for_a_steps() -> None:
    silence = stepping(0.1)
    silence.update(replace(BEAT, number=900, phase="save", step=209, at=20.0), 20.0)
    for number in (901, 902):
        silence.update(replace(BEAT, number=number, step=number, at=900.0), 900.0)
    assert silence.limit == 30


def test_going_back_to_a_checkpoint_is_not_taken_for_a_slow_step() -> None:
    silence = stepping(0.1)
    silence.update(replace(BEAT, number=900, step=50, at=500.0), 500.0)
    silence.update(replace(BEAT, number=901, step=51, at=500.1), 500.1)
    assert silence.limit == 30


def test_silence_grows_until_the_next_beat() -> None:
    silence = SilenceTimer(LIMITS)
    for second in range(5):
        silence.update(BEAT, float(second))
    assert silence.seconds == 4
    silence.update(replace(BEAT, number=2), 5.0)
    assert silence.seconds == 0


def test_a_rank_that_has_come_to_another_point_of_its_step_was_not_silent() -> None:
    silence = stepping(0.1)
    silence.update(replace(silence.beat, point="reads data"), 25.0)  # type: ignore[type-var]
    silence.update(replace(silence.beat, point="backward"), 30.0)  # type: ignore[type-var]
    assert silence.seconds == 0.0


def test_a_suspended_job_was_not_silent() -> None:
    silence = SilenceTimer(LIMITS)
    silence.update(BEAT, 0.0)
    silence.update(BEAT, 7200.0)
    assert silence.seconds == MAX_COUNTED_INTERVAL_S


@pytest.mark.parametrize(
    "late",
    [
        {"step": 811},
        {"point": "reads data"},
        {"micro": 0},
        {"phase": "evaluation", "point": ""},
        {"point": "agreement"},
        {"state": "T"},
        {"waits": False},
        {"silent_s": 41},
    ],
    ids=str,
)
def test_the_one_that_the_others_wait_for_is_the_culprit(late: dict[str, object]) -> None:
    guilty = replace(SILENT, rank=3, **late)  # type: ignore[arg-type]
    assert find_blocking_rank([SILENT, guilty, replace(SILENT, rank=2)]) == guilty


def test_nobody_hangs_while_the_last_one_moves() -> None:
    reading = replace(SILENT, rank=1, phase="data", point="", step=None, silent_s=1)
    assert find_blocking_rank([SILENT, reading]) is None


def test_ranks_without_validation_samples_wait_for_one_that_evaluates() -> None:
    done = replace(SILENT, phase="evaluation", point="", silent_s=700)
    assert find_blocking_rank([done, replace(done, rank=1, silent_s=1)]) is None


def test_the_paragraph_says_who_where_and_what_the_others_do() -> None:
    guilty = replace(SILENT, rank=3, host="node02", gpu=1, point="reads data", where="/home/me/data.py:41", waits=False)
    assert describe_hang(guilty, [SILENT, guilty], 4) == (
        "rank 3 of 4 (node02, GPU 1) last finished step 812 and sits in the data loader at /home/me/data.py:41; "
        "the others wait in all-reduce"
    )


def test_ranks_that_hang_together_are_named_together() -> None:
    reading = replace(SILENT, point="reads data", waits=False)
    description = describe_hang(reading, [reading, replace(reading, rank=1), replace(SILENT, rank=2)], 3)
    assert description.endswith("sits in the data loader; so does rank 1; the others wait in all-reduce")


def test_a_rank_that_runs_is_not_named_together_with_one_that_is_stopped() -> None:
    stopped = replace(SILENT, phase="start", point="", state="T", waits=False)
    description = describe_hang(stopped, [stopped, replace(stopped, rank=1, state="R")], 2)
    assert description.endswith("is stopped and sits in the start; the others wait in the start")


def test_where_all_wait_for_each_other_no_rank_is_accused() -> None:
    description = describe_hang(SILENT, [SILENT, replace(SILENT, rank=1, host="node02")], 2)
    assert description.startswith("all 2 ranks wait for each other in all-reduce after step 812")
    assert "node01, node02" in description


GPU_WAIT = replace(SILENT, point="device", unfinished="all_reduce 42 of 80 numbers")


def test_where_all_wait_for_their_gpus_no_rank_is_accused() -> None:
    both = (GPU_WAIT, replace(GPU_WAIT, rank=1))
    culprit = find_blocking_rank(both)
    assert culprit is not None
    description = describe_hang(culprit, both, 2)
    assert description.startswith(
        "all 2 ranks wait for their GPUs after step 812: the network or a device on node01 does not"
    )


def test_the_gpu_that_has_not_begun_what_the_others_wait_in_is_accused() -> None:
    late = replace(GPU_WAIT, rank=1, gpu=1, unfinished="all_reduce 42 of 80 numbers, not begun", silent_s=31)
    culprit = find_blocking_rank((GPU_WAIT, late))
    assert culprit is late
    description = describe_hang(late, (GPU_WAIT, late), 2)
    assert description == (
        "rank 1 of 2 (node01, GPU 1) last finished step 812: its GPU has not begun NCCL's all_reduce 42 of 80 numbers, "
        "in which the GPUs of other ranks wait"
    )


def test_a_stopped_rank_is_said_to_be() -> None:
    description = describe_hang(replace(SILENT, state="T", step=None, gpu=None, waits=False), [SILENT], 1)
    assert description.startswith("rank 0 of 1 (node01) has finished no step, is stopped and sits in the backward pass")


TIMEOUTS = HangTimeouts(start=60, step=5, evaluation=60, save=60, data=60)
ELSEWHERE = RankStatus(
    rank=1, host="node02", gpu=None, phase="step", point="reads data", step=3, micro=1, silent_s=9, limit_s=5
)


class Task:
    """One task's watch over one rank of two, on a clock of its own."""

    def __init__(self, errors: Path, world_size: int = 2, **facts: Any) -> None:
        world = replace(worlds.ALONE, world_size=world_size)
        process: Any = SimpleNamespace(pid=os.getpid())
        self.child = Child(world=world, process=process, tee=None, heartbeat=HeartbeatChannel())  # type: ignore[arg-type]
        self.pulse = Heartbeat(mmap.mmap(self.child.heartbeat.page, PAGE_SIZE_BYTES))  # type: ignore[union-attr]
        self.care = SupervisionPolicy(limits=TIMEOUTS, errors=RunErrors(errors), **facts)
        self.watch, self.now = HangWatch(self.care, [self.child], "node01", False), 0.0

    def beat(self, phase: Phase, *steps: int) -> None:
        for step in steps:
            self.pulse.beat(phase, step=step)

    def wait(self, seconds: float) -> RunError | None:
        verdict, end = None, self.now + seconds
        while verdict is None and self.now < end:
            self.now += 0.5
            verdict = self.watch.poll([self.child], self.now)
        return verdict


def test_a_silent_rank_is_a_hang_once_its_limit_is_over(tmp_path: Path) -> None:
    task = Task(tmp_path, world_size=1)
    task.beat("step", 2, 3)
    assert task.wait(4.0) is None
    verdict = task.wait(4.0)
    assert verdict is not None
    assert (verdict.failure.code, verdict.rank, verdict.step) == (91, 0, 3)
    assert (tmp_path / "stacks-rank-0000.txt").exists()


def test_stacks_are_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "errors").symlink_to(tmp_path / "outside")
    task = Task(tmp_path / "errors", world_size=1)
    task.beat("step", 2, 3)
    assert task.wait(8.0) is not None
    assert list((tmp_path / "outside").iterdir()) == []


def test_in_the_first_step_it_is_the_start_that_may_be_longer(tmp_path: Path) -> None:
    task = Task(tmp_path, world_size=1)
    task.beat("step", 0)
    verdict = task.wait(100.0)
    assert verdict is not None
    assert "launch.timeouts.start=" in verdict.failure.fix


def test_a_slow_save_is_not_taken_for_a_hang(tmp_path: Path) -> None:
    task = Task(tmp_path, world_size=1)
    task.beat("step", 2, 3)
    task.beat("save", 3)
    assert task.wait(50.0) is None


def test_the_culprit_of_another_task_is_named(tmp_path: Path) -> None:
    task = Task(tmp_path)
    task.beat("step", 2, 4)
    (tmp_path / "hang-node02-0001.json").write_text(json.dumps([asdict(ELSEWHERE)]))
    verdict = task.wait(10.0)
    assert verdict is not None
    assert (verdict.rank, verdict.host, verdict.step) == (1, "node02", 3)


def test_a_task_whose_rank_waits_for_one_at_work_elsewhere_goes_on(tmp_path: Path) -> None:
    task = Task(tmp_path)
    task.beat("step", 2, 4)
    (tmp_path / "hang-node02-0001.json").write_text(json.dumps([asdict(replace(ELSEWHERE, silent_s=0.2))]))
    assert task.wait(2 * PEER_ANSWER_TIMEOUT_S) is None


def test_a_task_answers_another_that_asks(tmp_path: Path) -> None:
    task = Task(tmp_path, world_size=3)
    task.beat("step", 2, 4)
    (tmp_path / "hang-node02-0001.json").write_text(json.dumps([asdict(ELSEWHERE)]))
    task.wait(3.0)
    assert json.loads(task.watch.status_path.read_text())[0]["step"] == 4


def test_a_node_that_says_nothing_is_lost(tmp_path: Path) -> None:
    task = Task(tmp_path)
    task.beat("step", 2, 4)
    verdict = task.wait(5.0 + 2 * PEER_ANSWER_TIMEOUT_S)
    assert verdict is not None
    assert verdict.failure.code == 69
    assert "no word from rank 1 of 2" in verdict.failure.what


def test_what_an_earlier_start_has_said_is_taken_back(tmp_path: Path) -> None:
    old = tmp_path / "hang-node01-0000.json"
    old.write_text("[]")
    Task(tmp_path)
    assert not old.exists()


def test_what_an_earlier_start_has_said_on_another_node_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "hang-7-0-node02-0001.json").write_text(json.dumps([asdict(ELSEWHERE)]))
    task = Task(tmp_path, world_size=2)
    task.watch.launch_id = "7.1"
    assert task.wait(0.5) is None
    assert not (tmp_path / "stacks-rank-0000.txt").exists()


def test_what_earlier_starts_have_said_goes_where_rank_0_starts(tmp_path: Path) -> None:
    for name in ("hang-7-0-node02-0001.json", "hang-7-1-node02-0001.json"):
        (tmp_path / name).touch()
    task = Task(tmp_path)
    HangWatch(task.care, [task.child], "node01", False, "7.1")
    assert [path.name for path in tmp_path.iterdir()] == ["hang-7-1-node02-0001.json"]


def test_a_folder_that_takes_nothing_does_not_keep_the_verdict_back(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    task = Task(tmp_path / "file", world_size=1)
    task.beat("step", 2, 3)
    assert task.wait(20.0) is not None
