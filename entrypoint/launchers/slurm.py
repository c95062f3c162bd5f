"""This launcher reads Slurm's variables of a job step's task into an Allocation.

It also checks a batch or interactive shell, which is no task. docs/detection.md tells what each
variable means in which scope; the tests use captured environments.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from entrypoint.errors import ExitCode, Failure
from entrypoint.hostlist import expand_counts, expand_hosts
from entrypoint.launchers.allocation import Allocation, Evidence
from entrypoint.machine import Machine
from entrypoint.platforms import platforms_that_start
from entrypoint.world import is_whole_number, parse_whole_number, read_sizes

SLURM = platforms_that_start("step")["slurm"]
STEP_VARIABLES = SLURM.variables
# The job's size, in the variables of its batch script or an interactive shell.
JOB_SIZE_VARIABLES = {
    "nodes": ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
    "tasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "groups": ("SLURM_HET_SIZE",),
}
# Slurm reserves the step ids from here up: batch script 0xfffffffb, interactive step 0xfffffffa,
# printed unsigned by some versions and as -5 and -6 by others. Source: slurm/slurm.h,
# SLURM_BATCH_SCRIPT and its neighbours.
_FIRST_RESERVED_STEP_ID = 0xFFFFFFF0
NAMES = ("slurm-node", "slurm-task")  # in `entrypoint show`: one task on each node, several on some
SRUN_COMMAND = "srun --kill-on-bad-exit=1 COMMAND"


def in_job(environ: Mapping[str, str]) -> bool:
    """Whether this process belongs to a Slurm job in any way."""
    return bool(environ.get("SLURM_JOB_ID"))


def in_step(environ: Mapping[str, str]) -> bool:
    """Whether this process is a task that srun started.

    SLURM_PROCID alone is not enough: the batch script has it too, as 0. sbatch passes all variables of a step on to a
    job that is submitted there. Up to Slurm 24.11 they stay; a task's numbers equal its step's, a batch script's need
    not.
    """
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or ""
    is_task = is_whole_number(step) and int(step) < _FIRST_RESERVED_STEP_ID and not _missing_task_variables(environ)
    return is_task and not any(
        name in environ and name_in_step in environ and environ[name] != environ[name_in_step]
        for name, name_in_step in (("SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"), ("SLURM_NNODES", "SLURM_STEP_NUM_NODES"))
    )


def is_shell(environ: Mapping[str, str]) -> bool:
    """Whether this step is an interactive shell on one node (`srun --pty`); its other tasks have no input."""
    return bool(environ.get("SLURM_PTY_PORT")) and SLURM.get(environ, "num_nodes") == "1"


def _missing_task_variables(environ: Mapping[str, str]) -> list[str]:
    """The variables that srun sets for a task and that are missing."""
    return [STEP_VARIABLES[fact] for fact in ("world_size", "rank", "local_rank") if not SLURM.get(environ, fact)]


def job_key(environ: Mapping[str, str]) -> str:
    """Job, step and restart: the launch_id of the tasks that srun starts."""
    step = environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID") or "batch"
    return f"slurm:{environ['SLURM_JOB_ID']}.{step}.{environ.get('SLURM_RESTART_COUNT', '0')}"


def read_evidence(environ: Mapping[str, str]) -> Iterator[Evidence]:
    """What Slurm says of this task and its job. An interactive shell (`srun --pty`) is one task, whatever it counts."""
    is_task = in_step(environ)
    yield Evidence(
        platform=SLURM,
        read=partial(read_step_allocation, environ) if is_task else None,
        tasks=read_sizes(environ, ["SLURM_STEP_NUM_TASKS"]) if is_task and not is_shell(environ) else {},
        count_nodes=partial(read_sizes, environ, () if is_task else JOB_SIZE_VARIABLES["nodes"]),
    )


def read_step_allocation(environ: Mapping[str, str]) -> Allocation:
    """The Allocation of a task that srun started.

    Raises:
        Failure: LAUNCH_CONFLICT for a missing variable or for numbers that contradict each other.
    """
    _require_step_variables(environ)
    hosts = expand_hosts(environ[STEP_VARIABLES["hosts"]], STEP_VARIABLES["hosts"])
    counts = expand_counts(environ[STEP_VARIABLES["local_world_size"]], STEP_VARIABLES["local_world_size"])
    numbers = {
        fact: parse_whole_number(variable, environ[variable])
        for fact, variable in STEP_VARIABLES.items()
        if fact not in ("hosts", "local_world_size")
    }
    _refuse_contradictions(environ, numbers, hosts, counts)
    one_task_per_node = max(counts) == 1
    return Allocation(
        launcher=NAMES[0] if one_task_per_node else NAMES[1],
        task=numbers["rank"],
        num_tasks=numbers["world_size"],
        local_task=numbers["local_rank"],
        node_rank=numbers["node_rank"],
        num_nodes=numbers["num_nodes"],
        tasks_on_node=counts[numbers["node_rank"]],
        hosts=hosts,
        one_task_per_node=one_task_per_node,
        master_addr=hosts[0],  # Slurm puts task 0 on the step's first host
        master_port=None,
        launch_id=job_key(environ),
        sources={**STEP_VARIABLES, "master_addr": STEP_VARIABLES["hosts"]},
    )


def check_job_shell(environ: Mapping[str, str], machine: Machine) -> None:
    """Accept a batch or interactive shell of a job with one node and one task.

    Raises:
        Failure: LAUNCH_CONFLICT if the job has more, or if this machine is not one of its nodes.
    """
    counts = {noun: _first_set_variable(environ, names) for noun, names in JOB_SIZE_VARIABLES.items()}
    if any(parse_whole_number(variable, number) > 1 for variable, number in counts.values()):
        variables = " ".join(f"{variable}={number}" for variable, number in counts.values())
        raise _without_srun_failure(environ, variables, "the job has several nodes or tasks")
    names = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
    node_name = environ.get("SLURMD_NODENAME") or machine.hostname
    if names and machine.container != "docker" and node_name not in expand_hosts(names, "SLURM_JOB_NODELIST"):
        variables = f"this host is {node_name}, SLURM_JOB_NODELIST={names}"
        raise _without_srun_failure(environ, variables, "this host is not one of the job's")


def count_job_resources(environ: Mapping[str, str], machine: Machine) -> tuple[int, int]:
    """CPUs and GPUs that the job has on this node, as far as its variables say; SLURM_GPUS_ON_NODE is the step's."""
    step_gpus, job_ids = environ.get("SLURM_GPUS_ON_NODE", ""), environ.get("SLURM_JOB_GPUS", "")
    gpus = max(int(step_gpus) if is_whole_number(step_gpus) else 0, len(job_ids.split(",")) if job_ids else 0)
    try:
        hosts = expand_hosts(environ["SLURM_JOB_NODELIST"], "SLURM_JOB_NODELIST")
        counts = expand_counts(environ["SLURM_JOB_CPUS_PER_NODE"], "SLURM_JOB_CPUS_PER_NODE")
        return counts[hosts.index(environ.get("SLURMD_NODENAME") or machine.hostname)], gpus
    except (KeyError, ValueError, IndexError, Failure):
        return 0, gpus


def _first_set_variable(environ: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str]:
    return next(((name, environ[name]) for name in names if environ.get(name)), (names[0], "1"))


def _without_srun_failure(environ: Mapping[str, str], variables: str, why: str) -> Failure:
    return Failure(
        f"inside a Slurm job but not started by srun, and {why}: this would train on one node only, or hang",
        found=variables,
        expected="a task that srun started, with " + (", ".join(_missing_task_variables(environ)) or "its own step id"),
        fix=f"start it with {SRUN_COMMAND}",
        code=ExitCode.LAUNCH_CONFLICT,
    )


def _require_step_variables(environ: Mapping[str, str]) -> None:
    missing = [name for name in ("SLURM_JOB_ID", *STEP_VARIABLES.values()) if not environ.get(name)]
    if missing:
        raise Failure(
            f"a Slurm job step without {', '.join(missing)}",
            found=f"SLURM_STEP_ID={environ.get('SLURM_STEP_ID')}",
            fix=f"do not unset SLURM_* variables (`--cleanenv` does); start it with {SRUN_COMMAND}",
            code=ExitCode.LAUNCH_CONFLICT,
        )


def _refuse_contradictions(
    environ: Mapping[str, str], numbers: Mapping[str, int], hosts: tuple[str, ...], counts: tuple[int, ...]
) -> None:
    node = numbers["node_rank"]
    rules = [
        (numbers["rank"] < numbers["world_size"], ("rank", "world_size")),
        (node < numbers["num_nodes"], ("node_rank", "num_nodes")),
        (len(set(hosts)) == numbers["num_nodes"], ("hosts", "num_nodes")),
        (len(counts) == numbers["num_nodes"], ("local_world_size", "num_nodes")),
        (sum(counts) == numbers["world_size"] and min(counts) > 0, ("local_world_size", "world_size")),
        (node < len(counts) and numbers["local_rank"] < counts[node], ("local_rank", "local_world_size")),
    ]
    for holds, facts in rules:
        if not holds:
            names = [STEP_VARIABLES[fact] for fact in facts]
            raise Failure(
                f"{names[0]} and {names[1]} contradict each other",
                found=" ".join(f"{name}={environ[name]}" for name in names),
                fix=f"do not set SLURM_* variables by hand; start it with {SRUN_COMMAND}",
                code=ExitCode.LAUNCH_CONFLICT,
            )
