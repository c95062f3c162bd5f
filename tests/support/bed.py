"""A handle on a running test cluster: commands as its unprivileged user, and jobs that end in bounded time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from machines import REPOSITORY

TOOL = REPOSITORY / "tests" / "cluster" / "cluster"
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "OUT_OF_MEMORY")
Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A cluster that `tests/cluster/cluster up` started. `/shared` on its nodes is `shared` here."""

    folder: Path

    @property
    def shared(self) -> Path:
        """The parallel file system, as this machine sees it."""
        return self.folder / "shared"

    def here(self, path: str) -> Path:
        """A path below /shared, as this machine sees it."""
        return self.shared / path.removeprefix("/shared").strip("/")

    def login(self, *command: str, cwd: str = "/shared", seconds: float = 120) -> Done:
        """Run a command on the controller as the user (variables: `env NAME=value ...`); its output is one text."""
        words = ["login", "env", "-C", cwd, *command]
        return _tool(words, CLUSTER=str(self.folder), seconds=seconds)

    def root(self, node: str, *command: str, seconds: float = 60) -> Done:
        """Run a command as root on a node."""
        return _tool(["root", node, *command], CLUSTER=str(self.folder), seconds=seconds)

    def cut(self, node: str) -> None:
        """Take a node's network link down: it lives on, and nobody hears of it."""
        _tool(["cut", node], CLUSTER=str(self.folder), seconds=60)

    def heal(self, *nodes: str) -> None:
        """Take links up again, and wait until Slurm uses these nodes."""
        for node in nodes:
            _tool(["heal", node], CLUSTER=str(self.folder), seconds=60)
        until(lambda: set(nodes) <= self.idle(), 90, lambda: f"idle are only {self.idle()}")

    def idle(self) -> set[str]:
        """The nodes that have nothing to do, and could."""
        return set(self.login("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N").stdout.split())

    def submit(self, *options: str, script: str | None = None, cwd: str = "/shared", **variables: str) -> Job:
        """sbatch, with a script's text or with the name of one among the options; `variables` are the user's own."""
        words = [
            *(f"{name}={value}" for name, value in variables.items()),
            "sbatch",
            "--parsable",
            "--output=job-%j.out",
            "--open-mode=append",
            *options,
        ]
        if script is not None:
            path = self.here(cwd) / "job.sh"
            path.write_text(f"#!/bin/bash\nset -euo pipefail\n{script}\n")
            words.append("job.sh")
        done = self.login(*words, cwd=cwd)
        number = done.stdout.strip().splitlines()[-1] if done.returncode == 0 else ""
        if not number.isdigit():
            raise RuntimeError(f"sbatch refused the job: {done.stdout}")
        return Job(cluster=self, number=number, cwd=cwd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job in the queue, or one that has left it."""

    cluster: Cluster
    number: str
    cwd: str

    @property
    def output(self) -> str:
        """What it has printed so far."""
        path = self.cluster.here(self.cwd) / f"job-{self.number}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def facts(self) -> dict[str, str]:
        """What Slurm says of it: JobState, ExitCode ("code:signal"), Restarts, ..."""
        return dict(re.findall(r"(\w+)=(\S*)", self.cluster.login("scontrol", "show", "job", "-o", self.number).stdout))

    def signal(self, *options: str) -> None:
        """Plain scancel, or one with options such as `-s USR1`."""
        done = self.cluster.login("scancel", *options, self.number)
        if done.returncode:
            raise RuntimeError(f"scancel failed: {done.stdout}")

    def wait(self, seconds: float = 150) -> Ended:
        """Wait for its end; a job that does not end in time is killed, and an error."""
        try:
            until(lambda: self.facts().get("JobState") in OVER, seconds, lambda: f"job {self.number}:\n{self.output}")
        finally:
            self.cluster.login("scancel", "--quiet", "--full", "-s", "KILL", self.number)
        facts = self.facts()
        return Ended(state=facts["JobState"], code=int(facts["ExitCode"].split(":")[0]), output=self.output)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job ended: Slurm's state, the batch script's exit code, and all it printed."""

    state: str
    code: int
    output: str

    def objects(self) -> list[dict[str, Any]]:
        """The JSON objects among the printed lines, such as `entrypoint show --json` makes."""
        return [json.loads(line) for line in self.output.splitlines() if line.startswith("{")]


def until(holds: Callable[[], bool], seconds: float, why: Callable[[], str]) -> None:
    """Poll until `holds`; raises TimeoutError with the text of `why`."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds} s: {why()}")
        time.sleep(0.25)


@contextmanager
def running(**settings: str) -> Iterator[Cluster]:
    """A cluster for the time of the block; it ends with this process, however this process ends."""
    done = _tool(["up"], OWNER=str(os.getpid()), seconds=180, **settings)
    if done.returncode:
        raise RuntimeError(f"the test cluster does not start: {done.stdout}")
    cluster = Cluster(folder=Path(done.stdout.strip().splitlines()[-1]))
    try:
        yield cluster
    finally:
        _tool(["down"], CLUSTER=str(cluster.folder), seconds=60)


def _tool(words: list[str], *, seconds: float, **settings: str) -> Done:
    """The program in a process group of its own: a time-out ends all of it."""
    environ: Mapping[str, str] = {**os.environ, **settings}
    with subprocess.Popen(
        [str(TOOL), *words],
        env=environ,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            raise
    return subprocess.CompletedProcess(words, process.returncode, output, "")
