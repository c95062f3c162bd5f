"""Schedulers whose job script runs on the first node only: PBS, Grid Engine, LSF, OAR, Flux and others.

Without mpiexec or the like a job of several nodes would train on the first one, so that is refused. (Slurm's batch
script is checked in `slurm`.)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

from entrypoint.errors import ExitCode, Failure
from entrypoint.launchers.allocation import THIS_NODE_ONLY_FIX, Evidence
from entrypoint.machine import Machine
from entrypoint.platforms import Platform, platforms_that_start
from entrypoint.world import is_whole_number, parse_whole_number

SCHEDULERS: Final = platforms_that_start("script")


def detection_variables(scheduler: Platform) -> tuple[str, ...]:
    """The variables that show a job of this scheduler."""
    return (*scheduler.hosts, *scheduler.host_files, *scheduler.counts, *scheduler.signs)


def job_id(environ: Mapping[str, str]) -> str:
    """The id of the batch job; empty outside of one."""
    names = (name for scheduler in SCHEDULERS.values() for name in scheduler.launch_ids)
    return ":".join(environ[name] for name in names if environ.get(name))


def read_evidence(environ: Mapping[str, str], machine: Machine) -> Iterator[Evidence]:
    """What each scheduler says whose job this is."""
    for scheduler in SCHEDULERS.values():
        if any(environ.get(name) for name in detection_variables(scheduler)):
            yield Evidence(platform=scheduler, count_nodes=partial(count_nodes, environ, machine, scheduler))


def count_nodes(environ: Mapping[str, str], machine: Machine, scheduler: Platform) -> dict[str, int]:
    """The variable that tells the number of nodes of the batch job, and the number; empty if none does."""
    hosts = scheduler.read_hosts(environ, machine.host_files)
    if hosts.source:
        return {hosts.source: len(hosts.names)}
    name = next((name for name in scheduler.counts if environ.get(name)), None)
    return {name: parse_whole_number(name, environ[name])} if name else {}


def _refuse_later_tasks(environ: Mapping[str, str]) -> None:
    for scheduler in SCHEDULERS.values():
        for name, first in scheduler.first_task.items():
            number = environ.get(name, "")
            if is_whole_number(number) and int(number) > first:
                raise Failure(
                    f"{name} shows that {scheduler.title} has other tasks, and no launcher connects them: this one "
                    "would train alone",
                    found=f"{name}={number}",
                    fix=f"{scheduler.command} apptainer exec --nv train.sif train ...; {THIS_NODE_ONLY_FIX}",
                    code=ExitCode.LAUNCH_CONFLICT,
                )


def refuse_several_nodes(environ: Mapping[str, str], evidence: Sequence[Evidence]) -> tuple[str, ...]:
    """Refuse a job of several nodes; return warnings. Call this when no launcher was detected.

    Raises:
        Failure: LAUNCH_CONFLICT if the job has several nodes.
    """
    _refuse_later_tasks(environ)
    around = next((each for each in evidence if each.platform.starts == "script"), None)
    if around is None:
        return ()
    scheduler, nodes = around.platform, next(iter(around.count_nodes().values()), None)
    if nodes == 1:
        return ()
    name = next(name for name in detection_variables(scheduler) if environ.get(name))
    if nodes is not None:
        raise Failure(
            f"the script of {scheduler.title} runs on the first of its {nodes} nodes: this node would train alone",
            found=f"{name}={environ[name][:200]}",
            fix=f"{scheduler.command} apptainer exec --nv train.sif train ..., which starts it on all nodes; "
            f"{THIS_NODE_ONLY_FIX}",
            code=ExitCode.LAUNCH_CONFLICT,
        )
    job = scheduler.title.partition(" ")[2]
    what = f"this {job} may have other nodes, which would stay idle"
    if name in scheduler.host_files:
        folder = os.path.dirname(environ[name])
        return (f"{what}: {name}={environ[name]} cannot be read. fix: export APPTAINER_BIND={folder}",)
    return (f"{what}. fix: start train with {scheduler.command}",)
