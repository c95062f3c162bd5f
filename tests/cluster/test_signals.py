"""Stopping in mid-run on a real cluster: the step is finished and saved, and the next start goes on after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from bed import Cluster, Ended, until
from launching import Launched, launch
from runs import ENDLESS, TEN_STEPS

# A model that one node cannot build: a GPU is missing there, say.
BROKEN_ON_NODE02 = """
import socket
from entrypoint import ExitCode, Failure
from torch import nn
def build(classes, shape):
    if socket.gethostname() == "node02":
        raise Failure("this node is broken", fix="use another", code=ExitCode.NODE)
    inside = shape.channels * shape.size[0] * shape.size[1]
    return nn.Sequential(nn.Flatten(), nn.Linear(inside, classes))
"""


@pytest.fixture(scope="module")
def limited(cluster: Cluster, place: Callable[[str], str]) -> Launched:
    """A run of three minutes that is to be warned before them: it trains while the others are looked at.

    Slurm may warn a minute early: a busy machine needs what is left for the image to start and to listen.
    """
    work = place("limited")
    (cluster.here(work) / "config.yaml").write_text(ENDLESS)
    return launch(cluster, work, "multigpu", "--time=3", "--signal=USR1@80", "config.yaml", MAX_REQUEUES="1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A run of two ranks that was told to stop twice, and might be requeued once."""

    launched: Launched
    ended: Ended
    went_on_from: int
    first_stop: int


@pytest.fixture(scope="module")
def stopped(cluster: Cluster, limited: Launched, place: Callable[[str], str]) -> Stopped:
    work = place("stopped")
    (cluster.here(work) / "config.yaml").write_text(ENDLESS)
    variables = {"ENTRYPOINT_PROCS_PER_NODE": "2", "MAX_REQUEUES": "1"}
    one = launch(cluster, work, "multigpu", "config.yaml", **variables)
    one.train_until(3)
    one.job.signal("-s", "USR1")
    first = one.stopped_at("SIGUSR1")
    again = one.starts_again()
    one.train_until(again + 2)
    one.job.signal("-s", "USR1")
    return Stopped(launched=one, ended=one.job.wait(), went_on_from=again, first_stop=first)


def test_a_run_that_was_told_to_stop_goes_on_with_the_next_step(stopped: Stopped) -> None:
    assert stopped.went_on_from == stopped.first_stop
    assert stopped.launched.run.logged() == list(range(1, stopped.launched.stopped_at("SIGUSR1") + 1))


def test_its_script_puts_it_back_into_the_queue_as_often_as_allowed(stopped: Stopped) -> None:
    assert "exit code 75: requeued, start 2" in stopped.ended.output
    assert (stopped.ended.state, stopped.ended.code, stopped.launched.restarts) == ("FAILED", 75, 1)


def test_the_log_of_the_first_start_is_kept(stopped: Stopped) -> None:
    assert stopped.ended.output.count("image /shared/train.sif sha256:") == 2


def test_a_cancelled_run_is_saved_and_not_requeued(cluster: Cluster, work: str) -> None:
    (cluster.here(work) / "config.yaml").write_text(ENDLESS)
    one = launch(cluster, work, "multigpu", "--nodes=2", "config.yaml")
    one.train_until(3)
    one.job.signal()
    assert (one.job.wait().state, one.restarts) == ("CANCELLED", 0)
    one.stopped_at("SIGTERM")


def test_a_run_under_torchrun_is_saved_and_requeued_as_well(cluster: Cluster, work: str) -> None:
    (cluster.here(work) / "config.yaml").write_text(ENDLESS)
    one = launch(cluster, work, "torchrun", "config.yaml", MAX_REQUEUES="1")
    one.train_until(3)
    one.job.signal("-s", "TERM")
    one.stopped_at("SIGTERM")
    until(lambda: one.restarts == 1, 120, lambda: one.job.output)
    one.job.signal()


def test_a_run_goes_on_without_the_node_that_failed(cluster: Cluster, work: str) -> None:
    (cluster.here(work) / "config.yaml").write_text(TEN_STEPS.replace("small_cnn", '"broken:build"'))
    (cluster.here(work) / "broken.py").write_text(BROKEN_ON_NODE02)
    one = launch(cluster, work, "multigpu", "--nodes=2", "config.yaml")
    ended = one.job.wait(280)
    assert "exit code 78: requeued, start 2, not on node02" in ended.output
    assert (ended.state, one.run.record["hosts"]) == ("COMPLETED", ["node01", "node03"])


def test_a_job_on_a_node_without_gpus_moves_to_another(cluster: Cluster, work: str) -> None:
    (cluster.here(work) / "config.yaml").write_text(TEN_STEPS.replace("device: cpu", "device: cuda"))
    one = launch(cluster, work, "multigpu", "config.yaml", MAX_REQUEUES="1")
    ended, facts = one.job.wait(280), one.job.facts()
    assert (ended.state, ended.code, facts["Restarts"]) == ("FAILED", 78, "1")
    assert f"exit code 78: requeued, start 2, not on {facts['ExcNodeList']}" in ended.output
    assert facts["NodeList"] != facts["ExcNodeList"]


def test_nodes_without_gpus_are_named_where_srun_shows_another_code(cluster: Cluster, work: str) -> None:
    (cluster.here(work) / "config.yaml").write_text(TEN_STEPS.replace("device: cpu", "device: cuda"))
    one = launch(cluster, work, "multigpu", "--nodes=2", "config.yaml", MAX_REQUEUES="1")
    until(lambda: "requeued, start 2" in one.job.output, 120, lambda: one.job.output)
    one.job.signal()  # it may wait for ever: too few nodes are left
    assert "exit code 78: requeued, start 2, not on node0" in one.job.output


def test_where_slurm_does_not_requeue_the_run_s_own_code_is_kept(cluster: Cluster, work: str) -> None:
    (cluster.here(work) / "config.yaml").write_text(TEN_STEPS.replace("device: cpu", "device: cuda"))
    ended = launch(cluster, work, "multigpu", "--no-requeue", "config.yaml").job.wait(280)
    assert "presently disabled" in ended.output
    assert (ended.state, ended.code) == ("FAILED", 78), ended.output


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempted:
    """Two tasks of an array, of two ranks each, one of which had to make room for an urgent job."""

    left_alone: Launched
    preempted: Launched


@pytest.fixture(scope="module")
def array(cluster: Cluster, place: Callable[[str], str]) -> Iterator[Preempted]:
    work = place("array")
    (cluster.here(work) / "config.yaml").write_text(ENDLESS)
    (cluster.here(work) / "lr.txt").write_text("optim.lr=0.1\noptim.lr=0.2\n")
    words = ("--array=1-2", "--cpus-per-task=4", "config.yaml", "lr.txt")
    first = launch(cluster, work, "sweep", *words, name="lr-1", task="1", ENTRYPOINT_PROCS_PER_NODE="2")
    second = Launched(
        job=type(first.job)(cluster=cluster, number=first.job.number.replace("_1", "_2"), cwd=work),
        run=type(first.run)(folder=first.run.folder.with_name("lr-2")), said="",
    )  # fmt: skip
    first.train_until(3)
    second.train_until(3)
    node = second.job.facts()["NodeList"]
    urgent = cluster.submit("-p", "urgent", "--exclusive", "-w", node, script="sleep 1", cwd=work)
    urgent.wait()
    yield Preempted(left_alone=first, preempted=second)
    first.job.signal()
    second.job.signal()


@pytest.mark.every_run
def test_a_preempted_task_is_saved_requeued_and_goes_on(array: Preempted) -> None:
    task = array.preempted
    again = task.starts_again()
    task.train_until(again + 1)
    assert again > 3
    logged = task.run.logged()
    assert logged == list(range(1, len(logged) + 1))


def test_the_other_tasks_of_its_array_train_on(array: Preempted) -> None:
    assert array.left_alone.restarts == 0
    assert len(array.left_alone.run.record["starts"]) == 1


def test_a_run_that_is_warned_of_its_time_limit_is_requeued(limited: Launched) -> None:
    until(lambda: limited.restarts == 1, 240, lambda: limited.job.output)
    limited.job.signal()
    assert "exit code 75: requeued, start 2" in limited.job.output
