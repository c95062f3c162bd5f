"""`detect_allocation` reads the variables of the innermost launcher into an Allocation.

It refuses variables that contradict each other or that were inherited from another launch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from entrypoint.errors import ExitCode, Failure
from entrypoint.handover import DEVICE_VARIABLE, HANDOVER_VARIABLE, Handover
from entrypoint.hostlist import expand_counts
from entrypoint.launchers import batch_script, local, per_node, per_rank, slurm, torchrun
from entrypoint.launchers.allocation import THIS_NODE_ONLY_FIX, Allocation, Evidence
from entrypoint.machine import Machine
from entrypoint.options import LaunchOptions
from entrypoint.platforms import Platform
from entrypoint.world import TORCHRUN_VARIABLES, parse_port, parse_whole_number


def detect_allocation(environ: Mapping[str, str], options: LaunchOptions, machine: Machine) -> Allocation:
    """The Allocation that the innermost launcher gave this task.

    Order: command line > torchrun > one process per rank (unless srun set its variables) > a real srun step > PET_* >
    one task per node > a shell in a job > no launcher. A job script that runs on the first of several nodes is
    refused: see `batch_script`.

    Raises:
        Failure: LAUNCH_CONFLICT if the environment is incomplete or contradicts itself.
    """
    # Of a service called "master" or "pet-master" Kubernetes tells each pod so; a port given by a user is a number.
    links = {name: environ[name] for name in ("MASTER_PORT", "PET_MASTER_PORT") if "://" in environ.get(name, "")}
    if links:
        allocation = detect_allocation({**environ, **dict.fromkeys(links, "")}, options, machine)
        notes = [f"not used, Kubernetes sets it for a service of that name: {name}={links[name]}" for name in links]
        return replace(allocation, warnings=(*allocation.warnings, *notes))
    if options.nodes is not None:
        return _override_master(environ, local.manual_allocation(options, machine))
    evidence = read_evidence(environ, machine)
    if torchrun.has_rank_variables(environ):
        allocation = _read_torchrun_variables(environ, machine, evidence)
    else:
        allocation = _read_started_task(environ, evidence) or _read_job_script(environ, machine, evidence)
    allocation = _override_master(environ, allocation)
    # The parent of a rank of ours has looked. Outside of a job the handover names none, and proves nothing.
    if not (allocation.launcher == "torchrun" and Handover.from_environ(environ).job):
        _refuse_smaller_world(environ, allocation, evidence)
    return allocation


def read_evidence(environ: Mapping[str, str], machine: Machine) -> Sequence[Evidence]:
    """What each platform says that has set variables here, innermost first; torchrun's set is read on its own."""
    return (
        *per_rank.read_evidence(environ, machine),
        *slurm.read_evidence(environ),
        *per_node.read_evidence(environ, machine),
        *batch_script.read_evidence(environ, machine),
    )


def _read_started_task(environ: Mapping[str, str], evidence: Sequence[Evidence]) -> Allocation | None:
    """The Allocation of the innermost platform that started this task; None if none did."""
    for each in evidence:
        if each.read:
            if each.platform.starts == "rank":
                _refuse_ranks_of_another_launch(environ, each.platform)
            return each.read()
    return None


def _read_job_script(environ: Mapping[str, str], machine: Machine, evidence: Sequence[Evidence]) -> Allocation:
    """The Allocation of a process that no launcher started: alone on this node, or refused in a larger job."""
    if slurm.in_job(environ):
        slurm.check_job_shell(environ, machine)
    per_rank.refuse_unknown_launcher(environ)
    per_rank.refuse_unknown_ranks(environ)
    warnings = per_node.refuse_unknown_number_of_nodes(environ)
    _refuse_hidden_job(machine)
    return local.single_node_allocation(machine, warnings + batch_script.refuse_several_nodes(environ, evidence))


def _read_torchrun_variables(environ: Mapping[str, str], machine: Machine, evidence: Sequence[Evidence]) -> Allocation:
    """The Allocation of torchrun's variables, some of which may be missing.

    NVIDIA's enroot hook and many scripts export RANK=$SLURM_PROCID and the like without LOCAL_WORLD_SIZE. If they only
    repeat the numbers of the launcher around them, it says what is missing: which ranks share a node, and whether a
    task has to start a rank per GPU.

    Raises:
        Failure: LAUNCH_CONFLICT for variables of another launch; also as `torchrun.read_allocation`.
    """
    outer = None
    with suppress(Failure):  # it would not start without these variables: nothing around them is certain
        around = _read_started_task(environ, evidence)
        outer = around if around and torchrun.repeats_numbers(environ, around) else None
    _refuse_inherited_variables(environ, outer)
    if outer and not environ.get("LOCAL_WORLD_SIZE"):
        return outer
    return torchrun.read_allocation(environ, machine, outer)


def _refuse_smaller_world(environ: Mapping[str, str], allocation: Allocation, evidence: Sequence[Evidence]) -> None:
    """Refuse a world that is smaller than another launcher around it says: its other tasks would train on their own.

    Tasks are compared with tasks, and nodes with nodes.
    """
    own = {"tasks": _count_tasks(environ, allocation), "nodes": _max_nodes(allocation)}
    is_alone = allocation.num_tasks == 1
    launcher = per_rank.LAUNCHERS.get(allocation.launcher)
    sizes: list[tuple[int, str, str]] = []
    for each in evidence:
        is_around = each.platform.starts in ("step", "script")
        # Several ranks of mpirun may be in the step of its daemons, and a job may use some of its nodes.
        if is_around and launcher and (launcher.chooses_nodes or not is_alone):
            continue
        sizes += [(size, name, "tasks") for name, size in each.tasks.items()]
        if is_alone or not is_around:
            try:
                sizes += [(size, name, "nodes") for name, size in each.count_nodes().items()]
            except Failure:
                if is_alone:
                    raise
    larger = [(size, name, unit) for size, name, unit in sizes if size > own[unit]]
    if larger:
        size, name, unit = max(larger)
        variable = allocation.sources.get({"tasks": "world_size", "nodes": "num_nodes"}[unit]) or ""
        own_size = f"{variable}={environ[variable]}" if variable in environ else f"{unit}: {own[unit]}"
        verb = {"tasks": "starts", "nodes": "uses"}[unit]
        raise Failure(
            f"{allocation.launcher} {verb} {own[unit]} of this training's {unit}, and {name} says that there are "
            f"{size}: the others would train on their own",
            found=f"{own_size} {name}={environ.get(name, size)}",
            fix=f"start it with one launcher, on all nodes; {THIS_NODE_ONLY_FIX}, without torchrun or mpiexec",
            code=ExitCode.LAUNCH_CONFLICT,
        )


def _count_tasks(environ: Mapping[str, str], allocation: Allocation) -> int:
    """How many tasks of another launcher this world can have: each torchrun is one, whatever it starts."""
    by_agents = allocation.launcher == "torchrun" and environ.get("TORCHELASTIC_RUN_ID")
    return allocation.num_nodes if by_agents else allocation.num_tasks


def _max_nodes(allocation: Allocation) -> int:
    """The number of nodes; where it is a guess, the most that it can be: one for each task on another node."""
    if allocation.sources.get("local_world_size") == "derived":
        return allocation.num_tasks
    if allocation.launcher in per_rank.LAUNCHERS:
        return max(allocation.num_nodes, 1 + allocation.num_tasks - allocation.tasks_on_node)
    return allocation.num_nodes


def _override_master(environ: Mapping[str, str], allocation: Allocation) -> Allocation:
    """Use MASTER_ADDR and MASTER_PORT if they are set: many job scripts export them before srun.

    The address counts under srun and mpirun, the port under every launcher that sets none itself, also on one machine.
    The address spares no exchange of hosts: mpirun without -x hands it to the tasks of the first host only, and either
    all tasks exchange or none.
    """
    overrides: dict[str, Any] = {}
    if environ.get("MASTER_ADDR") and allocation.launcher in (*per_rank.LAUNCHERS, *slurm.NAMES):
        overrides["master_addr"] = environ["MASTER_ADDR"]
    if environ.get("MASTER_PORT") and allocation.master_port is None:
        overrides["master_port"] = parse_port("MASTER_PORT", environ["MASTER_PORT"])
    sources = {**allocation.sources, **{name: name.upper() for name in overrides}}
    return replace(allocation, sources=sources, **overrides)


def current_job_key(environ: Mapping[str, str]) -> str:
    """The jobs, step, launch and platform of this process, separated by spaces; empty without any."""
    rank_launcher = per_rank.find_launcher(environ)
    launchers = ([rank_launcher] if rank_launcher else []) + per_node.find_platforms(environ)
    keys = [slurm.job_key(environ)] if slurm.in_job(environ) else []
    keys += [batch_script.job_id(environ), *(f"{each.name}:{each.launch_id(environ)}" for each in launchers)]
    return " ".join(filter(None, keys))


def _refuse_inherited_variables(environ: Mapping[str, str], outer: Allocation | None) -> None:
    """Refuse torchrun's variables if they belong to another launch.

    sbatch and srun pass on the environment of the process that calls them, also that of a rank.
    Variables that we set must name this job, step and launch; variables set by hand must agree with
    srun's numbers, or with those of `outer`: mpirun's in a Slurm job, say.
    """
    current_job, handover = current_job_key(environ), Handover.from_environ(environ)
    if handover.job is not None:
        if not set(current_job.split()) <= set(handover.job.split()):
            raise _inherited_variables_failure(environ, handover, current_job)
        return
    if outer is None and slurm.in_step(environ) and not _is_torchrun_inside_task(environ):
        _refuse_contradiction_with_step(environ)


def _is_torchrun_inside_task(environ: Mapping[str, str]) -> bool:
    """Whether a torchrun agent inside each task may have set the variables.

    Slurm then counts the agents. A step may have one of several agents, if each node has an srun of
    its own. A world with fewer ranks than the step has tasks, or with more agents than its several
    tasks, is not this step's. (`_refuse_smaller_world` refuses one with fewer agents.)
    """
    names = ("WORLD_SIZE", "GROUP_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
    ranks, agents, tasks = (parse_whole_number(name, environ.get(name) or "0") for name in names)
    has_more_agents = agents > tasks > 1 and not slurm.is_shell(environ)
    return bool(environ.get("TORCHELASTIC_RUN_ID")) and ranks >= tasks and not has_more_agents


def _refuse_ranks_of_another_launch(environ: Mapping[str, str], launcher: Platform) -> None:
    """Refuse an MPI launcher's variables in a step with several tasks on a node: sbatch has passed them on.

    mpirun inside a Slurm job starts one daemon on each node as a step of its own; in a step with several tasks on a
    node each task would start an mpirun of its own. In a step with one task per node nothing shows which it is.
    """
    if launcher.chooses_nodes or not slurm.in_step(environ) or slurm.is_shell(environ):
        return
    counts = environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    if counts and max(expand_counts(counts, "SLURM_STEP_TASKS_PER_NODE")) > 1:
        rank = launcher.variables["rank"]
        names = (rank, launcher.variables["world_size"], "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
        present = [name for name in per_rank.VARIABLES if name in environ]
        raise Failure(
            f"{rank} and SLURM_PROCID contradict each other: {launcher.name} does not start several tasks of "
            "a step on one node, so its variables are those of another launch, which sbatch passed on",
            found=" ".join(f"{name}={environ[name]}" for name in names if name in environ),
            expected="one launcher: srun, or mpirun in the job script without srun",
            fix=f"first in the job script: unset {' '.join(present)}; or leave out srun before mpirun",
            code=ExitCode.LAUNCH_CONFLICT,
        )


def _inherited_variables_failure(environ: Mapping[str, str], handover: Handover, current_job: str) -> Failure:
    our_variables = [
        *TORCHRUN_VARIABLES.values(),
        HANDOVER_VARIABLE,
        DEVICE_VARIABLE,
        *handover.added,
        # Of a command on the CPU (entrypoint.launch): it would hide the next job's GPUs too.
        *(["ACCELERATE_USE_CPU", "CUDA_VISIBLE_DEVICES"] if environ.get("CUDA_VISIBLE_DEVICES") == "" else []),
    ]
    torchelastic_variables = [variable for variable in environ if variable.startswith("TORCHELASTIC_")]
    names = dict.fromkeys(
        variable for variable in (*our_variables, *per_rank.VARIABLES, *torchelastic_variables) if variable in environ
    )
    return Failure(
        "the environment holds the variables of a rank of another launch: sbatch, srun and others pass them on",
        found=f"RANK={environ['RANK']} WORLD_SIZE={environ['WORLD_SIZE']} of {handover.job or 'no job'}, "
        f"and this is {current_job}",
        expected="the variables that the launcher of this job sets",
        fix=f"before submitting, or first in the job script: unset {' '.join(names)}",
        code=ExitCode.LAUNCH_CONFLICT,
    )


def _refuse_contradiction_with_step(environ: Mapping[str, str]) -> None:
    advice = "; for a training of this task alone (in `srun --pty` too): --nodes 1 --node-rank 0 --master-addr "
    advice = f"{advice}127.0.0.1, without torchrun" if environ.get("TORCHELASTIC_RUN_ID") else ""
    for fact in ("rank", "world_size", "local_rank"):
        name, slurm_name = TORCHRUN_VARIABLES[fact], slurm.STEP_VARIABLES[fact]
        if environ[name] != environ[slurm_name]:
            raise Failure(
                f"{name} and {slurm_name} contradict each other",
                found=f"{name}={environ[name]} {slurm_name}={environ[slurm_name]}",
                expected="one launcher's numbers (a batch script that exports RANK gives all tasks the same one)",
                fix="remove `export RANK/WORLD_SIZE/LOCAL_RANK` from the batch script, or unset them there: srun's own "
                f"numbers are read{advice}",
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
