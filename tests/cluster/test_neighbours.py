"""Other people's jobs: one that shares the node, and one that takes it away."""

from __future__ import annotations

import pytest
from bed import Cluster, Job, until
from runs import ENDLESS, TEN_STEPS, Run

STEPS = 600


def submit(cluster: Cluster, work: str, name: str, text: str, *options: str) -> tuple[Run, Job]:
    """Two ranks on node01 by the job script."""
    (cluster.here(work) / f"{name}.yaml").write_text(text.replace("name: run", f"name: {name}"))
    job = cluster.submit(
        "-wnode01", "--cpus-per-task=2", "--gpus-per-node=2", *options, "/shared/launch/multigpu.sh", f"{name}.yaml",
        cwd=work, IMAGE="/shared/train.sif", OMP_NUM_THREADS="1", ENTRYPOINT_PROCS_PER_NODE="2",
    )  # fmt: skip
    return Run(folder=cluster.here(work) / "runs" / name), job


def trains(run: Run, job: Job, step: int) -> None:
    """Wait until more than `step` steps stand in the record."""
    until(lambda: max(run.logged(), default=0) > step, 300, lambda: f"no step {step} yet:\n{job.output}")


def test_two_jobs_train_at_the_same_time_on_one_node(cluster: Cluster, work: str) -> None:
    first, second = (submit(cluster, work, name, ENDLESS) for name in ("first", "second"))
    trains(*second, 3)
    trains(*first, max(first[0].logged()) + 3)  # still does, beside the other
    trains(*second, max(second[0].logged()) + 3)
    for _, job in (first, second):
        job.signal()
        assert job.wait(150).state == "CANCELLED"
    assert first[0].record["world"]["master_port"] != second[0].record["world"]["master_port"]


@pytest.fixture(scope="module")
def preempted(cluster: Cluster) -> tuple[Run, Job]:
    """A run that an urgent job pushes off its node half-way, and that ends by itself later."""
    work = "/shared/preempted"
    cluster.here(work).mkdir(mode=0o777)
    cluster.here(work).chmod(0o777)
    text = TEN_STEPS.replace("epochs: 1, max_steps: 10", f"epochs: 1000, max_steps: {STEPS}")
    run, job = submit(cluster, work, "low", text + "eval: {every_epochs: 1000}\n")
    trains(run, job, 3)
    urgent = cluster.submit("--partition=urgent", "-wnode01", "--exclusive", script="sleep 1", cwd=work)
    urgent.wait(200)
    assert job.wait(400).state == "COMPLETED", job.output
    return run, job


def test_a_preempted_run_is_put_back_into_the_queue_by_slurm(preempted: tuple[Run, Job]) -> None:
    assert preempted[1].facts()["Restarts"] == "1"


def test_a_preempted_run_saved_what_it_had_and_went_on_from_there(preempted: tuple[Run, Job]) -> None:
    first, second = preempted[0].record["starts"]
    assert 0 == first["step"] < second["step"] < STEPS


def test_a_preempted_run_does_every_step_once(preempted: tuple[Run, Job]) -> None:
    assert preempted[0].logged() == list(range(1, STEPS + 1))
