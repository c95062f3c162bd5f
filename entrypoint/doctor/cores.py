"""The processors that this process may use, against the ranks and data workers that want them."""

from __future__ import annotations

import os
from dataclasses import replace

from entrypoint.cgroups import cores_quota
from entrypoint.doctor.findings import Finding, ok, warn
from entrypoint.doctor.scene import Scene

WANTED = 2  # of a rank: one for itself, one for a data worker
_FIX = "give more: srun --cpus-per-task=N (and --cpu-bind=cores), docker run --cpus=N; or start fewer ranks here"
_SEEN = "give cores instead of time: docker run --cpuset-cpus=0-3; `train` itself starts no more than there is time for"
_FEWER = "give more: srun --cpus-per-task=N, docker run --cpus=N; or set data.workers to auto, which counts them"


def check(scene: Scene) -> list[Finding]:
    """Affinity, and the time that a control group gives."""
    mine, there, quota = len(os.sched_getaffinity(0)), os.cpu_count() or 1, cores_quota(scene.root)
    return [finding(mine, there, quota, sharing(mine, there, scene), scene.workers)]


def sharing(mine: int, there: int, scene: Scene) -> int:
    """How many ranks share these processors at least: a task's own, or more where tasks were not bound apart (all
    ranks of this machine with so many each are more than there are).
    """
    return max(scene.ranks_of_task, scene.ranks_here * mine // there)


def brief(scene: Scene) -> list[Finding]:
    """On the CPU without data workers a rank is content with one. A quota that is enough is kept to by a training."""
    found = check(replace(scene, workers=0) if scene.on_cpu and scene.workers is None else scene)
    return [finding for finding in found if finding.fix != _SEEN]


def finding(mine: int, there: int, quota: float | None, ranks: int, workers: int | None = None) -> Finding:
    """mine: the processors of this process' affinity, of `there`. quota: processors' worth of time, None for all.

    workers: data workers of each rank, where that is known; they may have the rank's own between them.
    """
    usable = min(mine, quota) if quota else mine
    text = f"{mine} of {there} can be used" + (f", with the time of {quota:g}" if quota and quota < mine else "")
    text += f", for {ranks} rank{'s' if ranks > 1 else ''}"
    text += f" with {workers} data worker{'s' if workers > 1 else ''} each" if workers else ""
    wanted = ranks * (WANTED if workers is None else max(workers, min(workers + 1, WANTED)))
    if usable >= wanted:
        if usable == mine:
            return ok("cores", text)
        return warn("cores", f"{text}: a program that counts them starts threads that stand still in between", _SEEN)
    if workers:
        return warn("cores", f"{text}: they take turns", _FEWER)
    return warn("cores", f"{text}: no core of its own for {'each' if workers == 0 else 'a data worker of each'}", _FIX)
