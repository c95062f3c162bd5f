"""Slurm's variables to an Allocation: of a real job step's task, or of a batch or interactive shell.

What each variable means in which scope is in docs/detection.md; the tests hold captured environments against it.
"""

from __future__ import annotations

from collections.abc import Mapping

from entrypoint.allocation import Allocation
from entrypoint.errors import ExitCode, Failure
from entrypoint.host import Machine
from entrypoint.hostlist import expand_counts, expand_hosts
from entrypoint.world import LONGEST, integer

# Our noun -> Slurm's variable, step scope only: the job's own (SLURM_NODELIST, SLURM_NTASKS_PER_NODE) may describe
# more nodes than the step has.
STEP = {
    "task": "SLURM_PROCID",
    "local_task": "SLURM_LOCALID",
    "node_rank": "SLURM_NODEID",
    "num_tasks": "SLURM_STEP_NUM_TASKS",
    "num_nodes": "SLURM_STEP_NUM_NODES",
    "hosts": "SLURM_STEP_NODELIST",
    "tasks_per_node": "SLURM_STEP_TASKS_PER_NODE",
}
# How many of each the job has, as its batch script and an interactive shell see it.
SHELL = {
    "nodes": ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
    "tasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "groups": ("SLURM_HET_SIZE",),
}
# Slurm keeps step ids from here up for itself: batch script 0xfffffffb, interactive step 0xfffffffa, printed unsigned
# by some versions and as -5 and -6 by others. Source: slurm/slurm.h, SLURM_BATCH_SCRIPT and its neighbours.
_FIRST_RESERVED_STEP = 0xFFFFFFF0
SRUN = "srun --kill-on-bad-exit=1 COMMAND"


def in_job(environ: Mapping[str, str]) -> bool:
    """Whether this process belongs to a Slurm job in any way."""
    return bool(environ.get("SLURM_JOB_ID"))


def in_step(environ: Mapping[str, str]) -> bool:
    """Whether this process is a task that srun started.

    SLURM_PROCID alone does not tell: the batch script has it too, as 0.
    """
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""
    return (
        step.isascii()
        and step.isdigit()
        and len(step) <= LONGEST
        and int(step) < _FIRST_RESERVED_STEP
        and not _lacking(environ)
    )


def _lacking(environ: Mapping[str, str]) -> list[str]:
    """What srun gives to a task, and is not there."""
    return [STEP[noun] for noun in ("num_tasks", "task", "local_task") if not environ.get(STEP[noun])]


def job_key(environ: Mapping[str, str]) -> str:
    """The same on all tasks of one launch: job, step and restart."""
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or "batch"
    return f"slurm:{environ['SLURM_JOB_ID']}.{step}.{environ.get('SLURM_RESTART_COUNT', '0')}"


def read_step(environ: Mapping[str, str]) -> Allocation:
    """The Allocation of a task that srun started.

    Raises:
        Failure: FACTS, for a missing variable or for numbers that contradict each other.
    """
    _require(environ)
    hosts = expand_hosts(environ[STEP["hosts"]], STEP["hosts"])
    counts = expand_counts(environ[STEP["tasks_per_node"]], STEP["tasks_per_node"])
    numbers = {noun: integer(STEP[noun], environ[STEP[noun]]) for noun in list(STEP)[:5]}
    _check(environ, numbers, hosts, counts)
    alone = max(counts) == 1
    return Allocation(
        launcher="slurm-node" if alone else "slurm-task",
        task=numbers["task"],
        num_tasks=numbers["num_tasks"],
        local_task=numbers["local_task"],
        node_rank=numbers["node_rank"],
        num_nodes=numbers["num_nodes"],
        tasks_here=counts[numbers["node_rank"]],
        hosts=hosts,
        may_spawn=alone,
        master_addr=hosts[0],
        master_port=None,
        key=job_key(environ),
        sources=_sources(),
    )


def read_shell(environ: Mapping[str, str], machine: Machine) -> None:
    """Accept a batch or interactive shell of a job with one node and one task: this node is then the whole world.

    Raises:
        Failure: FACTS, where the job has more, or where this machine is not one of the job's nodes.
    """
    counts = {noun: _first(environ, names) for noun, names in SHELL.items()}
    if any(integer(variable, number) > 1 for variable, number in counts.values()):
        found = " ".join(f"{variable}={number}" for variable, number in counts.values())
        raise _without_srun(environ, found, "the job has several nodes or tasks")
    names = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    here = environ.get("SLURMD_NODENAME") or machine.hostname
    if names and machine.container != "docker" and here not in expand_hosts(names, "SLURM_JOB_NODELIST"):
        found = f"this host is {here}, SLURM_JOB_NODELIST={names}"
        raise _without_srun(environ, found, "this host is not one of the job's")


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str]:
    return next(((name, environ[name]) for name in names if environ.get(name)), (names[0], "1"))


def _without_srun(environ: Mapping[str, str], found: str, why: str) -> Failure:
    return Failure(
        f"inside a Slurm job but not started by srun, and {why}: this would train on one node only, or hang",
        found=found,
        expected=f"a task that srun started, with {', '.join(_lacking(environ)) or 'a step id of its own'}",
        fix=f"start it with {SRUN}",
        code=ExitCode.FACTS,
    )


def _require(environ: Mapping[str, str]) -> None:
    missing = [name for name in STEP.values() if not environ.get(name)]
    if missing:
        raise Failure(
            f"a Slurm job step without {', '.join(missing)}",
            found=f"SLURM_STEP_ID={environ.get('SLURM_STEP_ID')}",
            fix=f"do not unset SLURM_* variables (`--cleanenv` does); start it with {SRUN}",
            code=ExitCode.FACTS,
        )


def _check(
    environ: Mapping[str, str], numbers: Mapping[str, int], hosts: tuple[str, ...], counts: tuple[int, ...]
) -> None:
    node = numbers["node_rank"]
    rules = [
        (numbers["task"] < numbers["num_tasks"], ("task", "num_tasks")),
        (node < numbers["num_nodes"], ("node_rank", "num_nodes")),
        (len(set(hosts)) == numbers["num_nodes"], ("hosts", "num_nodes")),
        (len(counts) == numbers["num_nodes"], ("tasks_per_node", "num_nodes")),
        (sum(counts) == numbers["num_tasks"] and min(counts) > 0, ("tasks_per_node", "num_tasks")),
        (node < len(counts) and numbers["local_task"] < counts[node], ("local_task", "tasks_per_node")),
    ]
    for holds, nouns in rules:
        if not holds:
            names = [STEP[noun] for noun in nouns]
            raise Failure(
                f"{names[0]} and {names[1]} contradict each other",
                found=" ".join(f"{name}={environ[name]}" for name in names),
                fix=f"do not set SLURM_* variables by hand; start it with {SRUN}",
                code=ExitCode.FACTS,
            )


def _sources() -> dict[str, str]:
    return {
        "rank": STEP["task"],
        "local_rank": STEP["local_task"],
        "world_size": STEP["num_tasks"],
        "local_world_size": STEP["tasks_per_node"],
        "node_rank": STEP["node_rank"],
        "num_nodes": STEP["num_nodes"],
        "master_addr": STEP["hosts"],
        "hosts": STEP["hosts"],
    }
