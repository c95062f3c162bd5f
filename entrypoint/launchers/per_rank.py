"""Launchers that start one process per rank: mpirun, mpiexec, flux run, jsrun.

Most do not say which host has rank 0. Then the tasks tell each other (entrypoint.exchange).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from entrypoint import pmi
from entrypoint.errors import ExitCode, Failure
from entrypoint.launchers import batch_script, slurm
from entrypoint.launchers.allocation import LOOPBACK, THIS_NODE_ONLY_FIX, Allocation, Evidence
from entrypoint.machine import Machine
from entrypoint.platforms import Platform, platforms_that_start
from entrypoint.world import is_whole_number, parse_whole_number, read_sizes

LAUNCHERS: Final = platforms_that_start("rank")
VARIABLES: Final = tuple(dict.fromkeys(name for each in LAUNCHERS.values() for name in each.variables.values()))
# Variables of launchers that set a rank, but no number of ranks that goes with it.
RANK_ONLY_VARIABLES: Final = {
    "PMIX_RANK": "PMIx (prterun)",
    "PALS_RANKID": "PALS",
    "PMI_ID": "MPICH's mpiexec -pmi-port",
}


def find_launcher(environ: Mapping[str, str]) -> Platform | None:
    """The launcher of this kind that started this process, or None.

    `srun --mpi=pmi2` sets PMI_* to the step's own numbers. Slurm's variables then say the same and
    more, and are used instead, also in an interactive shell, which is one task.
    """
    present = [each for each in LAUNCHERS.values() if each.get(environ, "rank") and not _repeats_slurm(environ, each)]
    # Flux sets PMI_RANK too: the first rank variable wins. Of those that share it, the one whose variables are there.
    same_rank = [each for each in present if each.variables["rank"] == present[0].variables["rank"]]

    def fit(launcher: Platform) -> tuple[int, int]:
        return sum(bool(launcher.get(environ, fact)) for fact in launcher.variables), -len(launcher.variables)

    return max(same_rank, key=fit, default=None)


def read_evidence(environ: Mapping[str, str], machine: Machine) -> Iterator[Evidence]:
    """What each of these launchers says, also if its rank is gone."""
    started = find_launcher(environ)
    for launcher in LAUNCHERS.values():
        sizes, nodes = (
            [launcher.variables[fact] for fact in facts if fact in launcher.variables]
            for facts in (("world_size", "local_world_size"), ("num_nodes",))
        )
        tasks = read_sizes(environ, sizes)
        if slurm.is_shell(environ):  # srun's plugin has set PMI_SIZE too
            tasks = {name: size for name, size in tasks.items() if str(size) != environ.get("SLURM_STEP_NUM_TASKS")}
        yield Evidence(
            platform=launcher,
            read=partial(read_allocation, environ, machine, launcher) if launcher is started else None,
            tasks=tasks,
            count_nodes=partial(read_sizes, environ, nodes),
        )


def _repeats_slurm(environ: Mapping[str, str], launcher: Platform) -> bool:
    if launcher.variables["rank"] not in ("PMI_RANK", "MV2_COMM_WORLD_RANK"):
        return False
    numbers = (launcher.get(environ, "rank"), launcher.get(environ, "world_size"))
    if slurm.in_step(environ):
        return numbers == (environ["SLURM_PROCID"], environ["SLURM_STEP_NUM_TASKS"])
    return numbers == ("0", "1") and _is_launched_by_slurm(environ)


def _is_launched_by_slurm(environ: Mapping[str, str]) -> bool:
    """Whether Slurm's own plugin (pmi2, cray_shasta, pmix) set the launch id."""
    job = environ.get("SLURM_JOB_ID")
    names = {"PMI_JOBID": f"{job}.", "PALS_APID": f"{job}.", "PMIX_NAMESPACE": f"slurm.pmix.{job}."}
    return bool(job) and any(environ.get(name, "").startswith(start) for name, start in names.items())


def refuse_unknown_launcher(environ: Mapping[str, str]) -> None:
    """Refuse a launcher that sets a rank but no world size: each task would train alone.

    Call this when no other launcher was detected.

    Raises:
        Failure: LAUNCH_CONFLICT if a variable of such a launcher is set.
    """
    name = next((name for name in RANK_ONLY_VARIABLES if environ.get(name)), None)
    if name and not _is_launched_by_slurm(environ):
        raise Failure(
            f"{name} shows that {RANK_ONLY_VARIABLES[name]} started this, and nothing tells how many ranks there are",
            found=f"{name}={environ[name][:200]}",
            expected="the variables of srun, torchrun, flux run, Open MPI's mpirun or MPICH's mpiexec",
            fix="start it with one of these, or one task on each node with --nodes --node-rank --master-addr "
            f"--master-port; for a training of this process alone: unset {name}",
            code=ExitCode.LAUNCH_CONFLICT,
        )


_RANK_ENDINGS: Final = ("_RANK", "_PROCID", "_TASK_ID", "_INDEX")
_SIZE_ENDINGS: Final = (
    *("SIZE", "WORLD_SIZE", "NRANKS", "NPROCS", "NTASKS", "COUNT", "NUM", "TOTAL", "NNODES", "NUM_NODES"),
)
# Independent jobs with a number each: those of an array, the shards of a test run, the tasks of Cloud Run and Batch.
_NO_RANK_NAME: Final = (  # not compiled here: seldom needed, and each `show` would pay
    r"(?:SLURM|PBS|AWS_BATCH_JOB|SGE|LSB|OAR|PJM)_ARRAY\w*|(?:\w+_)?CI_NODE_INDEX|CIRCLE_NODE_INDEX|SEMAPHORE_JOB_INDEX"
    r"|CLOUD_RUN_TASK_INDEX|BATCH_TASK_INDEX|JOB_INDEX|GPU_INDEX"
)


def refuse_unknown_ranks(environ: Mapping[str, str]) -> None:
    """Refuse a rank and a size of one unknown prefix, such as ACME_RANK=1 and ACME_SIZE=8.

    Call this when no other launcher was detected.

    Raises:
        Failure: LAUNCH_CONFLICT if there is such a pair, with a size above 1.
    """
    ranks = [(name, ending) for name in environ for ending in _RANK_ENDINGS if name.endswith(ending)]
    for rank, prefix in ((name, name.removesuffix(ending)) for name, ending in ranks):
        for size in _size_names(prefix):
            numbers = [environ.get(name, "") for name in (rank, size)]
            if not all(map(is_whole_number, numbers)) or re.fullmatch(_NO_RANK_NAME, rank):
                continue
            if int(numbers[0]) <= int(numbers[1]) > 1:  # equal: the last of those that are counted from 1
                raise Failure(
                    f"{rank} and {size} look like variables of an unknown launcher: each task would train alone",
                    found=f"{rank}={numbers[0]} {size}={numbers[1]}",
                    fix="start one task per node, each with --nodes NODES --node-rank K --master-addr HOST "
                    f"--master-port PORT; {THIS_NODE_ONLY_FIX}, or unset {rank}",
                    code=ExitCode.LAUNCH_CONFLICT,
                )


def _size_names(prefix: str) -> list[str]:
    """The sizes that go with ACME_NODE: ACME_NODE_COUNT, ACME_NUM_NODES and others; with NODE: NNODES, NUM_NODES."""
    outer, _, _ = prefix.rpartition("_")
    names = [f"{start}_{ending}" for start in (prefix, outer) if start for ending in _SIZE_ENDINGS]
    return names if outer else [*names, "NNODES", "NUM_NODES"]


def read_allocation(environ: Mapping[str, str], machine: Machine, launcher: Platform) -> Allocation:
    """The Allocation of one rank.

    Raises:
        Failure: LAUNCH_CONFLICT for a missing variable or impossible numbers.
    """
    values = {
        fact: parse_whole_number(variable, environ[variable])
        for fact, variable in launcher.variables.items()
        if environ.get(variable)
    }
    _require_all_variables(launcher, values)
    _refuse_out_of_range(launcher, values)
    size, rank = values["world_size"], values["rank"]
    # Equal on all tasks, also if they have not the same variables or numbers of ranks on their nodes.
    one_node = size == 1 or values.get("local_world_size") == size or values.get("num_nodes") == 1
    # On several nodes all are guesses, until the tasks have told each other their hosts. Lists of hosts are not read:
    # PBS_NODEFILE, SLURM_NODELIST and the like may be there on the first node only, begin with a node that has no
    # ranks, or hold more than this launcher uses.
    nodes = 1 if one_node else values.get("num_nodes") or -(-size // values.get("local_world_size", 1))
    local_size = values.get("local_world_size", -(-size // nodes))
    local_rank = values.get("local_rank", 0)
    # Two starts of mpiexec on one host, or in one job, are told apart by what they exchange.
    lacks_id = size > 1 and not launcher.launch_id(environ) and _offers_pmi(environ, rank, size)
    return Allocation(
        launcher=launcher.name,
        task=rank,
        num_tasks=size,
        local_task=local_rank,
        tasks_on_node=local_size,
        node_rank=rank // local_size,
        num_nodes=nodes,
        hosts=(machine.hostname,) if one_node else (),
        one_task_per_node=local_size == 1,
        master_addr=LOOPBACK if one_node else "",
        master_port=None,
        launch_id=_launch_id(environ, launcher),
        exchanges_hosts=lacks_id or not one_node,
        sources={**launcher.variables, "master_addr": "this host" if one_node else ""},
    )


def _require_all_variables(launcher: Platform, values: Mapping[str, int]) -> None:
    missing = [variable for field, variable in launcher.variables.items() if field not in values]
    if missing:
        raise Failure(
            f"{launcher.name} started this, but these variables are missing: {', '.join(missing)}",
            found=", ".join(f"{launcher.variables[field]}={value}" for field, value in values.items()),
            fix="apptainer exec without --cleanenv and --containall; docker run -e NAME for each; if a script exports "
            f"the rank: unset {launcher.variables['rank']}",
            code=ExitCode.LAUNCH_CONFLICT,
        )


def _refuse_out_of_range(launcher: Platform, values: Mapping[str, int]) -> None:
    rules = (  # field, the one that bounds it, by how much it must be smaller
        ("rank", "world_size", 1),
        ("local_rank", "local_world_size", 1),
        ("local_rank", "world_size", 1),
        ("local_world_size", "world_size", 0),
    )
    for small, large, gap in rules:
        if small in values and large in values and values[small] + gap > values[large]:
            names = [launcher.variables.get(field, field) for field in (small, large)]
            raise Failure(
                f"{names[0]} must {'be below' if gap else 'not be above'} {names[1]}",
                found=f"{names[0]}={values[small]} {names[1]}={values[large]}",
                fix="do not set these variables by hand; the launcher sets them",
                code=ExitCode.LAUNCH_CONFLICT,
            )


def _launch_id(environ: Mapping[str, str], launcher: Platform) -> str:
    """The launch_id of this start: the launcher's own id if there is one, otherwise the job.

    Ranks that mpirun starts over ssh inside a Slurm job have no SLURM_*.
    """
    if start_id := launcher.launch_id(environ):
        return f"mpi:{start_id}"
    job = batch_script.job_id(environ) if launcher.passes_job_id else ""
    return f"mpi:{environ.get('SLURM_JOB_ID', '')}:{environ.get('SLURM_RESTART_COUNT', '0')}:{job}"


def _offers_pmi(environ: Mapping[str, str], rank: int, size: int) -> bool:
    return bool(environ.get("PMI_FD") or environ.get("PMI_PORT")) and pmi.is_available(environ, rank, size)
