"""`detect_allocation` reads the variables of the innermost launcher into an Allocation.

It refuses variables that contradict each other or that were inherited from another launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from entrypoint.errors import ExitCode, Failure
from entrypoint.launchers import local, mpi, slurm, torchrun, unsupported
from entrypoint.launchers.allocation import Allocation
from entrypoint.machine import Machine
from entrypoint.options import LaunchOptions
from entrypoint.world import TORCHRUN_VARIABLES, parse_port, parse_whole_number

RUN_ID_VARIABLE = "ENTRYPOINT_RUN_ID"
JOB_VARIABLE = "ENTRYPOINT_JOB"  # in a process that we started: its torchrun set is ours, and innermost in this job


def detect_allocation(environ: Mapping[str, str], options: LaunchOptions, machine: Machine) -> Allocation:
    """What the launcher gave this task.

    Order: the command line > a torchrun set > Open MPI > PMI > a real srun step > PET_* > a shell in a job > bare.
    A job of several nodes under another scheduler is none of these: see `schedulers`.

    Raises:
        Failure: LAUNCH_CONFLICT, where the environment is incomplete or contradicts itself.
    """
    return _with_master_port(environ, _read_innermost_launcher(environ, options, machine))


def _read_innermost_launcher(environ: Mapping[str, str], options: LaunchOptions, machine: Machine) -> Allocation:
    if options.nodes is not None:
        return local.manual_allocation(options, machine)
    if torchrun.has_rank_variables(environ):
        _refuse_inherited_variables(environ)
        return torchrun.read_allocation(environ, machine)
    if name := mpi.detect_family(environ):
        return _override_master_addr(environ, mpi.read_allocation(environ, machine, name))
    if slurm.in_step(environ):
        return _override_master_addr(environ, slurm.read_step_allocation(environ))
    if environ.get("PET_NNODES"):
        return local.pet_allocation(environ, machine)
    if slurm.in_job(environ):
        slurm.check_job_shell(environ, machine)
    mpi.refuse_unknown_launcher(environ)
    _refuse_hidden_job(machine)
    return local.single_node_allocation(machine, unsupported.refuse_several_nodes(environ, machine))


def _override_master_addr(environ: Mapping[str, str], found: Allocation) -> Allocation:
    """MASTER_ADDR, exported before srun as MASTER_PORT is, is the commonest idiom on clusters: it wins."""
    addr = environ.get("MASTER_ADDR")
    return replace(found, master_addr=addr, sources={**found.sources, "master_addr": "MASTER_ADDR"}) if addr else found


def _with_master_port(environ: Mapping[str, str], found: Allocation) -> Allocation:
    """MASTER_PORT counts under every launcher that gives no port of its own, also on one machine."""
    given = environ.get("MASTER_PORT")
    if found.master_port is not None or not given:
        return found
    sources = {**found.sources, "master_port": "MASTER_PORT"}
    return replace(found, master_port=parse_port("MASTER_PORT", given), sources=sources)


def current_job_key(environ: Mapping[str, str]) -> str:
    """The scheduler's job, and Slurm's step, in which this process is; empty outside of any."""
    if slurm.in_job(environ):
        return slurm.job_key(environ)
    return mpi.batch_job_id(environ)


def _refuse_inherited_variables(environ: Mapping[str, str]) -> None:
    """A set that we made must be of this job and step; one that no torchrun made must agree with srun's numbers.

    sbatch and srun hand on the environment of the process that calls them, also that of a rank.
    """
    here, made_in = current_job_key(environ), environ.get(JOB_VARIABLE)
    if made_in is not None:
        if here and made_in != here:
            raise _inherited_variables_failure(environ, made_in, here)
        return
    if slurm.in_step(environ) and not _is_torchrun_inside_task(environ):
        _refuse_contradiction_with_step(environ)


def _is_torchrun_inside_task(environ: Mapping[str, str]) -> bool:
    """Whether the set may be of a torchrun inside each task: Slurm's numbers are then those of the agents.

    Each agent starts one rank or more: a set for fewer ranks than the step has tasks is not this step's.
    """
    size, tasks = "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"
    return bool(environ.get("TORCHELASTIC_RUN_ID")) and parse_whole_number(size, environ[size]) >= parse_whole_number(
        tasks, environ[tasks]
    )


def _inherited_variables_failure(environ: Mapping[str, str], made_in: str, here: str) -> Failure:
    ours = [
        *TORCHRUN_VARIABLES.values(),
        JOB_VARIABLE,
        "ENTRYPOINT_DEVICE",
        *environ.get("ENTRYPOINT_SET", "").split(","),
    ]
    mpis = [variable for tables in mpi.VARIABLE_TABLES.values() for table in tables for variable in table.values()]
    elastic = [variable for variable in environ if variable.startswith("TORCHELASTIC_")]
    names = dict.fromkeys(variable for variable in (*ours, *mpis, *elastic) if variable in environ)
    return Failure(
        "the variables of a rank of another launch came along: sbatch, srun and others hand on what they find",
        found=f"RANK={environ['RANK']} WORLD_SIZE={environ['WORLD_SIZE']} of {made_in or 'no job'}, and this is {here}",
        expected="the variables that the launcher of this job sets",
        fix=f"before submitting, or first in the job script: unset {' '.join(names)}",
        code=ExitCode.LAUNCH_CONFLICT,
    )


def _refuse_contradiction_with_step(environ: Mapping[str, str]) -> None:
    pairs = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "LOCAL_RANK": "SLURM_LOCALID"}
    own = "; for a training of this task alone (in `srun --pty` too): --nodes 1 --node-rank 0 --master-addr 127.0.0.1, "
    own += "without torchrun"
    for ours, theirs in pairs.items():
        if environ[ours] != environ[theirs]:
            raise Failure(
                f"{ours} and {theirs} contradict each other",
                found=f"{ours}={environ[ours]} {theirs}={environ[theirs]}",
                expected="one launcher's numbers (a batch script that exports RANK gives all tasks the same one)",
                fix="remove `export RANK/WORLD_SIZE/LOCAL_RANK` from the batch script, or unset them there: srun's own "
                f"numbers are read{own if environ.get('TORCHELASTIC_RUN_ID') else ''}",
                code=ExitCode.LAUNCH_CONFLICT,
            )


def _refuse_hidden_job(machine: Machine) -> None:
    """`--cleanenv` and `--containall` remove SLURM_*: a task among several would take itself for a world of one."""
    hidden = machine.hidden_job
    # Without the job's variables nothing tells how many tasks it has.
    known = "SLURM_JOB_NUM_NODES" in hidden or "SLURM_NNODES" in hidden
    tasks = hidden.get("SLURM_STEP_NUM_TASKS") or hidden.get("SLURM_NTASKS") or ("1" if known else "several")
    if hidden and tasks != "1":
        raise Failure(
            f"a parent process is in Slurm job {hidden['SLURM_JOB_ID']}, but the SLURM_* variables were removed: each "
            "of the job's tasks would train alone",
            found=f"a job with {tasks} tasks; SLURM_JOB_ID is not set here",
            fix="leave out --cleanenv (-e) and --containall (-C) of apptainer; for this node alone: --nodes 1 "
            "--node-rank 0 --master-addr 127.0.0.1",
            code=ExitCode.LAUNCH_CONFLICT,
        )
