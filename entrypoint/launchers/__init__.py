"""`detect_allocation` reads the variables of the innermost launcher into an Allocation.

It refuses variables that contradict each other or that were inherited from another launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from entrypoint.errors import ExitCode, Failure
from entrypoint.launchers import batch_script, local, per_node, per_rank, slurm, torchrun
from entrypoint.launchers.allocation import THIS_NODE_ONLY_FIX, Allocation
from entrypoint.machine import Machine
from entrypoint.options import LaunchOptions
from entrypoint.world import MAX_DIGITS, TORCHRUN_VARIABLES, parse_port, parse_whole_number

LAUNCH_ID_VARIABLE = "ENTRYPOINT_RUN_ID"
JOB_VARIABLE = "ENTRYPOINT_JOB"  # the job of the process that set torchrun's variables, if that was us


def detect_allocation(environ: Mapping[str, str], options: LaunchOptions, machine: Machine) -> Allocation:
    """The Allocation that the innermost launcher gave this task.

    Order: command line > torchrun > one process per rank (unless srun set its variables) > a real srun step > PET_* >
    one task per node > a shell in a job > no launcher. A job script that runs on the first of several nodes is
    refused: see `batch_script`.

    Raises:
        Failure: LAUNCH_CONFLICT if the environment is incomplete or contradicts itself.
    """
    if options.nodes is not None:
        return _with_master_port(environ, local.manual_allocation(options, machine))
    allocation = _with_master_port(environ, _read_innermost_launcher(environ, machine))
    if JOB_VARIABLE not in environ:  # a rank of ours: its parent has looked
        _refuse_smaller_world(environ, machine, allocation)
    return allocation


def _read_innermost_launcher(environ: Mapping[str, str], machine: Machine) -> Allocation:
    if torchrun.has_rank_variables(environ):
        _refuse_inherited_variables(environ)
        return torchrun.read_allocation(environ, machine)
    if starter := per_rank.find_launcher(environ):
        return _override_master_addr(environ, per_rank.read_allocation(environ, machine, starter))
    if slurm.in_step(environ):
        return _override_master_addr(environ, slurm.read_step_allocation(environ))
    if environ.get("PET_NNODES"):
        return per_node.pet_allocation(environ, machine)
    if platform := per_node.find_launcher(environ):
        allocation = per_node.read_allocation(environ, machine, platform)
        return allocation if allocation.num_nodes == 1 else _override_master_addr(environ, allocation)
    if slurm.in_job(environ):
        slurm.check_job_shell(environ, machine)
    per_rank.refuse_unknown_launcher(environ)
    per_rank.refuse_unknown_ranks(environ)
    per_node.refuse_unknown_number_of_nodes(environ)
    _refuse_hidden_job(machine)
    return local.single_node_allocation(machine, batch_script.refuse_several_nodes(environ, machine))


def _refuse_smaller_world(environ: Mapping[str, str], machine: Machine, allocation: Allocation) -> None:
    """Refuse a world that is smaller than another launcher around it says: its other tasks would train on their own.

    A scheduler's number of nodes counts only against a single task: a job may use some of its nodes.
    """
    sizes = _sizes_of_launchers(environ)
    if allocation.num_tasks == 1:
        sizes |= _sizes_of_jobs(environ, machine)
    name, size = max(sizes.items(), key=lambda item: item[1], default=("", 0))
    if size > allocation.num_tasks:
        variable = allocation.sources.get("world_size") or allocation.sources.get("num_nodes", "")
        own = f"{variable}={environ[variable]}" if variable in environ else f"tasks: {allocation.num_tasks}"
        raise Failure(
            f"{allocation.launcher} starts {allocation.num_tasks} of this training's tasks, and {name} says that there "
            f"are {size}: the others would train on their own",
            found=f"{own} {name}={environ.get(name, size)}",
            fix=f"start it with one launcher, on all nodes; {THIS_NODE_ONLY_FIX}",
            code=ExitCode.LAUNCH_CONFLICT,
        )


def _sizes_of_launchers(environ: Mapping[str, str]) -> dict[str, int]:
    """Variable -> a number of tasks or nodes that a launcher has set, also if its rank is gone."""
    fields = ("world_size", "local_world_size", "num_nodes")
    names = [name for launcher in per_rank.RANK_LAUNCHERS for field in fields if (name := getattr(launcher, field))]
    platform = per_node.find_launcher(environ)
    names += ["PET_NNODES"] + ([platform.num_nodes] if platform else [])
    sizes = {name: int(environ[name]) for name in names if _is_number(environ.get(name, ""))}
    if platform and not platform.num_nodes:
        sizes[platform.hosts] = len(platform.split(environ[platform.hosts]))
    return sizes


def _sizes_of_jobs(environ: Mapping[str, str], machine: Machine) -> dict[str, int]:
    """Variable -> the number of nodes of the job, or of tasks of Slurm's step."""
    names = ("SLURM_STEP_NUM_TASKS",) if slurm.in_step(environ) else ("SLURM_JOB_NUM_NODES", "SLURM_NNODES")
    sizes = {name: int(environ[name]) for name in names if _is_number(environ.get(name, ""))}
    nodes, source = batch_script.count_nodes(environ, machine)
    return sizes | ({source: nodes} if source else {})


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def _override_master_addr(environ: Mapping[str, str], allocation: Allocation) -> Allocation:
    """Use MASTER_ADDR if it is set: many job scripts export it before srun, like MASTER_PORT."""
    addr = environ.get("MASTER_ADDR")
    if not addr:
        return allocation
    return replace(
        allocation,
        master_addr=addr,
        exchanges_hosts=allocation.exchanges_hosts and not allocation.places_are_known,
        sources={**allocation.sources, "master_addr": "MASTER_ADDR"},
    )


def _with_master_port(environ: Mapping[str, str], allocation: Allocation) -> Allocation:
    """Use MASTER_PORT under every launcher that sets no port itself, also on one machine."""
    port = environ.get("MASTER_PORT")
    if allocation.master_port is not None or not port:
        return allocation
    sources = {**allocation.sources, "master_port": "MASTER_PORT"}
    return replace(allocation, master_port=parse_port("MASTER_PORT", port), sources=sources)


def current_job_key(environ: Mapping[str, str]) -> str:
    """The scheduler's job (and Slurm's step) of this process; empty outside of a job."""
    if slurm.in_job(environ):
        return slurm.job_key(environ)
    return batch_script.job_id(environ)


def _refuse_inherited_variables(environ: Mapping[str, str]) -> None:
    """Refuse torchrun's variables if they belong to another launch.

    sbatch and srun pass on the environment of the process that calls them, also that of a rank.
    Variables that we set must name this job and step; variables set by hand must agree with srun's
    numbers.
    """
    current_job, original_job = current_job_key(environ), environ.get(JOB_VARIABLE)
    if original_job is not None:
        if current_job and original_job != current_job:
            raise _inherited_variables_failure(environ, original_job, current_job)
        return
    if slurm.in_step(environ) and not _is_torchrun_inside_task(environ):
        _refuse_contradiction_with_step(environ)


def _is_torchrun_inside_task(environ: Mapping[str, str]) -> bool:
    """Whether a torchrun agent inside each task may have set the variables.

    Slurm then counts the agents.

    Each agent starts at least one rank, so a world with fewer ranks than the step has tasks is not
    this step's.
    """
    size, tasks = "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"
    return bool(environ.get("TORCHELASTIC_RUN_ID")) and parse_whole_number(size, environ[size]) >= parse_whole_number(
        tasks, environ[tasks]
    )


def _inherited_variables_failure(environ: Mapping[str, str], original_job: str, current_job: str) -> Failure:
    our_variables = [
        *TORCHRUN_VARIABLES.values(),
        JOB_VARIABLE,
        "ENTRYPOINT_DEVICE",
        *environ.get("ENTRYPOINT_SET", "").split(","),
    ]
    mpi_variables = [variable for launcher in per_rank.RANK_LAUNCHERS for variable in launcher.variables.values()]
    torchelastic_variables = [variable for variable in environ if variable.startswith("TORCHELASTIC_")]
    names = dict.fromkeys(
        variable for variable in (*our_variables, *mpi_variables, *torchelastic_variables) if variable in environ
    )
    return Failure(
        "the environment holds the variables of a rank of another launch: sbatch, srun and others pass them on",
        found=f"RANK={environ['RANK']} WORLD_SIZE={environ['WORLD_SIZE']} of {original_job or 'no job'}, "
        f"and this is {current_job}",
        expected="the variables that the launcher of this job sets",
        fix=f"before submitting, or first in the job script: unset {' '.join(names)}",
        code=ExitCode.LAUNCH_CONFLICT,
    )


def _refuse_contradiction_with_step(environ: Mapping[str, str]) -> None:
    pairs = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "LOCAL_RANK": "SLURM_LOCALID"}
    advice = (
        "; for a training of this task alone (in `srun --pty` too): --nodes 1 --node-rank 0 --master-addr 127.0.0.1, "
    )
    advice += "without torchrun"
    for name, slurm_name in pairs.items():
        if environ[name] != environ[slurm_name]:
            raise Failure(
                f"{name} and {slurm_name} contradict each other",
                found=f"{name}={environ[name]} {slurm_name}={environ[slurm_name]}",
                expected="one launcher's numbers (a batch script that exports RANK gives all tasks the same one)",
                fix="remove `export RANK/WORLD_SIZE/LOCAL_RANK` from the batch script, or unset them there: srun's own "
                f"numbers are read{advice if environ.get('TORCHELASTIC_RUN_ID') else ''}",
                code=ExitCode.LAUNCH_CONFLICT,
            )


def _refuse_hidden_job(machine: Machine) -> None:
    """Refuse a task whose SLURM_* variables `--cleanenv` or `--containall` removed.

    It would train alone.
    """
    hidden = machine.hidden_job
    # slurmstepd's title names the job, but not the number of its tasks.
    has_variables = "SLURM_JOB_NUM_NODES" in hidden or "SLURM_NNODES" in hidden
    tasks = hidden.get("SLURM_STEP_NUM_TASKS") or hidden.get("SLURM_NTASKS") or ("1" if has_variables else "several")
    if hidden and tasks != "1":
        raise Failure(
            f"a parent process is in Slurm job {hidden['SLURM_JOB_ID']}, but the SLURM_* variables were removed: each "
            "of the job's tasks would train alone",
            found=f"a job with {tasks} tasks; SLURM_JOB_ID is not set here",
            fix=f"leave out --cleanenv (-e) and --containall (-C) of apptainer; {THIS_NODE_ONLY_FIX}",
            code=ExitCode.LAUNCH_CONFLICT,
        )
