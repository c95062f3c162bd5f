"""The job scripts submitted as a user does, and run on the login node: what they print, and their job."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bed import Cluster, Done, Job, until
from runs import Run


def run_directly(cluster: Cluster, work: str, script: str, *words: str, **variables: str) -> Done:
    """`launch/SCRIPT.sh WORDS` on the login node, in a folder that holds the configuration."""
    return cluster.login(*_variables(variables), f"/shared/launch/{script}.sh", *words, cwd=work, seconds=120)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A job of one of the scripts, and the run that it makes."""

    job: Job
    run: Run
    said: str

    @property
    def restarts(self) -> int:
        """How often Slurm has put it back into the queue."""
        return int(self.job.facts().get("Restarts", "0"))

    def train_until(self, step: int) -> None:
        """Wait until more than `step` steps stand in the record."""
        until(lambda: max(self.run.logged(), default=0) > step, 240, lambda: f"no step {step} yet:\n{self.job.output}")

    def starts_again(self, times: int = 1) -> int:
        """Wait for the so-many-th requeue and the start after it; returns the step that this goes on from."""
        until(lambda: self.restarts == times, 120, lambda: self.job.output)
        until(lambda: len(self.run.record.get("starts", [])) == times + 1, 240, lambda: self.job.output)
        return int(self.run.record["starts"][-1]["step"])

    def stopped_at(self, cause: str) -> int:
        """Wait until the run says with which step it ended; returns it, after comparing all that tells of it."""
        until(lambda: self.run.ending is not None, 120, lambda: self.job.output)
        ending = self.run.ending
        assert ending is not None
        assert (ending.code, ending.cause) == (75, cause)
        assert ending.step == self.run.committed() == max(self.run.logged())
        return ending.step


def launch(
    cluster: Cluster, work: str, script: str, *words: str, name: str = "run", task: str = "", **variables: str
) -> Launched:
    """Submit a script, options of sbatch first, and follow the job; `task` is one of an array's."""
    options = ["--cpus-per-task=1", "--gpus-per-node=1", "--output=job-%A_%a.out" if task else "--output=job-%j.out"]
    behind = next(number for number, word in enumerate(words) if not word.startswith("-"))
    command = ["sbatch", *options, *words[:behind], f"/shared/launch/{script}.sh", *words[behind:]]
    done = cluster.login(*_variables(variables), *command, cwd=work, seconds=120)
    number = re.search(r"Submitted batch job (\d+)", done.stdout)
    if number is None:
        raise RuntimeError(f"launch/{script}.sh was not submitted: {done.stdout}")
    job = Job(cluster=cluster, number=number[1] + (f"_{task}" if task else ""), cwd=work)
    return Launched(job=job, run=Run(folder=cluster.here(work) / "runs" / name), said=done.stdout)


def _variables(variables: dict[str, str]) -> list[str]:
    given = {"IMAGE": "/shared/train.sif", "OMP_NUM_THREADS": "1"} | variables
    return [f"{name}={value}" for name, value in given.items()]
