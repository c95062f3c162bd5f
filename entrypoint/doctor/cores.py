"""The processors that this process may use, against the ranks and data workers that want them."""

from __future__ import annotations

import os

from entrypoint.doctor import reading
from entrypoint.doctor.findings import Finding, ok, warn
from entrypoint.doctor.scene import Scene

WANTED = 2  # of a rank: one for itself, one for a data worker
_FIX = "give more: srun --cpus-per-task=N (and --cpu-bind=cores), docker run --cpus=N; or start fewer ranks here"


def check(scene: Scene) -> list[Finding]:
    """Affinity, and the time that a control group gives."""
    # A plan of one task per rank: what this task may use is its own rank's, the others have their own tasks.
    ranks = scene.plan.spawn if scene.plan else scene.ranks_here
    return [finding(len(os.sched_getaffinity(0)), os.cpu_count() or 1, reading.cores_quota(scene.root), ranks)]


def finding(mine: int, there: int, quota: float | None, ranks: int) -> Finding:
    """mine: the processors of this process' affinity, of `there`. quota: processors' worth of time, None for all."""
    usable = min(mine, quota) if quota else mine
    text = f"{mine} of {there} can be used" + (f", with the time of {quota:g}" if quota and quota < mine else "")
    text += f", for {ranks} rank{'s' if ranks > 1 else ''}"
    if usable >= WANTED * ranks:
        return ok("cores", text)
    if quota and quota < mine and mine >= WANTED * ranks:
        return warn("cores", f"{text}: threads are started for {mine} and stand still in between", _FIX)
    return warn("cores", f"{text}: no core of its own for a data worker of each", _FIX)
