"""Several tasks that watch their ranks, and one verdict."""

from __future__ import annotations

import json
import mmap
import os
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import worlds

from entrypoint.children import Child
from entrypoint.hang import PEER_ANSWER_TIMEOUT_S, HangTimeouts, HangWatch, RankStatus, SupervisionPolicy
from entrypoint.heartbeat import PAGE_SIZE_BYTES, Heartbeat, HeartbeatChannel, Phase
from entrypoint.run_errors import RunError, RunErrors

LIMITS = HangTimeouts(start=60, step=5, evaluation=60, save=60, data=60)
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
        self.care = SupervisionPolicy(limits=LIMITS, errors=RunErrors(errors), **facts)
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
