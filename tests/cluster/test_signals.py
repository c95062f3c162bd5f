"""Stopping in mid-run on a real cluster: the step is finished and saved, and the next start goes on after it."""

from __future__ import annotations

import pytest
from bed import Cluster, Job, until
from runs import ENDLESS, Run

SCRIPTS = {
    "multigpu": "--cpus-per-task=4 --gpus-per-node=4 /shared/launch/multigpu.sh config.yaml",
    "multinode": "--nodes=3 --cpus-per-task=4 --gpus-per-node=4 /shared/launch/multinode.sh config.yaml",
}


def submit(cluster: Cluster, work: str, script: str, requeues: int = 0) -> Job:
    """A training of two ranks or of three that nothing but a signal ends."""
    place = cluster.shared / work.removeprefix("/shared/")
    (place / "config.yaml").write_text(ENDLESS)
    ranks = {"multigpu": "2", "multinode": "1"}[script]
    return cluster.submit(
        *SCRIPTS[script].split(), cwd=work, IMAGE="/shared/train.sif", OMP_NUM_THREADS="1",
        ENTRYPOINT_PROCS_PER_NODE=ranks, MAX_REQUEUES=str(requeues),
    )  # fmt: skip


def run_of(cluster: Cluster, work: str) -> Run:
    return Run(folder=cluster.shared / work.removeprefix("/shared/") / "runs" / "run")


def train_until(run: Run, job: Job, step: int) -> None:
    """Wait until more than `step` steps stand in the record."""
    until(lambda: max(run.logged(), default=0) > step, 120, lambda: f"no step {step} yet:\n{job.output}")


def stopped_at(run: Run, cause: str) -> int:
    """The step that the run says it ended with, after comparing all that tells of it."""
    ending = run.ending
    assert ending is not None
    assert (ending.code, ending.cause) == (75, cause)
    assert ending.step == run.committed() == max(run.logged())
    return ending.step


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize(
    ("how", "cause", "state"),
    [(("-s", "USR1"), "SIGUSR1", "FAILED"), ((), "SIGTERM", "CANCELLED")],
    ids=["scancel -s USR1", "scancel"],
)
def test_a_stopped_run_is_saved_and_goes_on_with_the_next_step(
    cluster: Cluster, work: str, script: str, how: tuple[str, ...], cause: str, state: str
) -> None:
    run, job = run_of(cluster, work), submit(cluster, work, script)
    train_until(run, job, 3)
    job.signal(*how)
    assert job.wait(60).state == state
    step = stopped_at(run, cause)

    again = submit(cluster, work, script)
    train_until(run, again, step + 2)
    again.signal()
    again.wait(60)
    assert run.record["starts"][-1]["step"] == step
    assert run.logged() == list(range(1, stopped_at(run, "SIGTERM") + 1))


def test_a_run_that_was_told_to_stop_is_put_back_into_the_queue(cluster: Cluster, work: str) -> None:
    run, job = run_of(cluster, work), submit(cluster, work, "multinode", requeues=1)
    train_until(run, job, 3)
    job.signal("-s", "USR1")
    until(lambda: job.facts().get("Restarts") == "1", 60, lambda: job.output)
    until(lambda: len(run.record["starts"]) == 2, 120, lambda: job.output)
    train_until(run, job, run.record["starts"][-1]["step"] + 2)
    job.signal()
    ended = job.wait(60)
    assert ended.state == "CANCELLED"
    assert "exit code 75: requeued, start 2" in ended.output
    assert run.logged() == list(range(1, stopped_at(run, "SIGTERM") + 1))
