"""Other people's jobs on the same node. For one that takes it away, see test_signals.py."""

from __future__ import annotations

from bed import Cluster, Job, until
from runs import ENDLESS, Run


def submit(cluster: Cluster, work: str, name: str) -> tuple[Run, Job]:
    """Two ranks on node01 by the job script, until they are stopped."""
    (cluster.here(work) / f"{name}.yaml").write_text(ENDLESS.replace("name: run", f"name: {name}"))
    job = cluster.submit(
        "-wnode01", "--cpus-per-task=2", "--gpus-per-node=2", "/shared/launch/multigpu.sh", f"{name}.yaml",
        cwd=work, IMAGE="/shared/train.sif", OMP_NUM_THREADS="1", ENTRYPOINT_PROCS_PER_NODE="2",
    )  # fmt: skip
    return Run(folder=cluster.here(work) / "runs" / name), job


def trains(run: Run, job: Job, step: int) -> None:
    """Wait until more than `step` steps stand in the record."""
    until(lambda: max(run.logged(), default=0) > step, 300, lambda: f"no step {step} yet:\n{job.output}")


def test_two_jobs_train_at_the_same_time_on_one_node(cluster: Cluster, work: str) -> None:
    first, second = both = [submit(cluster, work, name) for name in ("first", "second")]
    for run, job in both:
        trains(run, job, 3)
    for run, job in both:  # still does, beside the other
        trains(run, job, max(run.logged()) + 3)
    for _, job in both:
        job.signal()
        assert job.wait(150).state == "CANCELLED"
    assert first[0].record["world"]["master_port"] != second[0].record["world"]["master_port"]
