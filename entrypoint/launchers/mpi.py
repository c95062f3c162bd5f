"""This launcher reads mpirun's variables into an Allocation of one rank.

They are those of Open MPI or of the PMI family (MPICH, Intel MPI, PALS, MVAPICH, srun).
"""

from __future__ import annotations

from collections.abc import Mapping

from entrypoint.errors import ExitCode, Failure
from entrypoint.hostlist import expand_hosts
from entrypoint.launchers import slurm
from entrypoint.launchers.allocation import Allocation
from entrypoint.machine import Machine
from entrypoint.world import parse_whole_number

HYDRA_VARIABLES = {
    "rank": "PMI_RANK",
    "world_size": "PMI_SIZE",
    "local_rank": "MPI_LOCALRANKID",
    "local_world_size": "MPI_LOCALNRANKS",
}
# Family -> field -> variable, one table for each set of names within a family. A new family is one
# entry: `entrypoint show` names it so, and the plan asks this table.
VARIABLE_TABLES: dict[str, tuple[dict[str, str], ...]] = {
    "openmpi": (
        {
            "rank": "OMPI_COMM_WORLD_RANK",
            "world_size": "OMPI_COMM_WORLD_SIZE",
            "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
            "local_world_size": "OMPI_COMM_WORLD_LOCAL_SIZE",
        },
    ),
    "pmi": (
        HYDRA_VARIABLES,
        {
            **HYDRA_VARIABLES,
            "local_rank": "PMI_LOCAL_RANK",
            "local_world_size": "PMI_LOCAL_SIZE",
        },  # PALS, on Cray's machines
        {
            "rank": "MV2_COMM_WORLD_RANK",
            "world_size": "MV2_COMM_WORLD_SIZE",
            "local_rank": "MV2_COMM_WORLD_LOCAL_RANK",
            "local_world_size": "MV2_COMM_WORLD_LOCAL_SIZE",
        },
    ),
}
# Ids of one mpirun, equal on all hosts. PMI_PORT is no such id: it differs between hosts.
MPIRUN_ID_VARIABLES = ("PMI_JOBID", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PALS_APID", "MPISPAWN_MPIRUN_ID")
BATCH_JOB_VARIABLES = ("PBS_JOBID", "LSB_JOBID", "LSB_JOBINDEX")
# Launchers that set a rank but no world size, which is not enough to train.
RANK_ONLY_VARIABLES = {
    "PMIX_RANK": "PMIx (prterun)",
    "PALS_RANKID": "PALS",
    "PMI_ID": "MPICH's mpiexec -pmi-port",
    "FLUX_TASK_RANK": "Flux",
    "JSM_NAMESPACE_RANK": "jsrun",
}


def detect_family(environ: Mapping[str, str]) -> str | None:
    """The family that started this process, or None.

    `srun --mpi=pmi2` sets PMI_* to the step's own numbers. Slurm's variables then say the same and
    more, and are used instead, also in an interactive shell, which is one task.
    """
    for name, tables in VARIABLE_TABLES.items():
        for table in tables:
            if environ.get(table["rank"]) and not (name == "pmi" and _repeats_slurm(environ, table)):
                return name
    return None


def _repeats_slurm(environ: Mapping[str, str], table: Mapping[str, str]) -> bool:
    numbers = (environ[table["rank"]], environ.get(table["world_size"]))
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
            expected="the variables of srun, torchrun, Open MPI's mpirun or MPICH's mpiexec",
            fix="start it with one of these, or one task on each node with --nodes --node-rank --master-addr "
            f"--master-port; for a training of this process alone: unset {name}",
            code=ExitCode.LAUNCH_CONFLICT,
        )


def batch_job_id(environ: Mapping[str, str]) -> str:
    """The job id of PBS or LSF; empty outside of a job."""
    return ":".join(environ[name] for name in BATCH_JOB_VARIABLES if environ.get(name))


def read_allocation(environ: Mapping[str, str], machine: Machine, name: str) -> Allocation:
    """The Allocation of one MPI rank.

    Raises:
        Failure: LAUNCH_CONFLICT for a missing variable, impossible numbers, or several nodes
            without an address.
    """
    table = _select_table(environ, name)
    values = {
        noun: parse_whole_number(variable, environ[variable])
        for noun, variable in table.items()
        if environ.get(variable)
    }
    _require_all_variables(table, values)
    _refuse_out_of_range(table, values)
    nodes = -(-values["world_size"] // values["local_world_size"])
    hosts = _read_hosts(environ, machine, nodes)
    node_name = environ.get("SLURMD_NODENAME") or machine.hostname
    return Allocation(
        launcher=name,
        task=values["rank"],
        num_tasks=values["world_size"],
        local_task=values["local_rank"],
        tasks_on_node=values["local_world_size"],
        node_rank=hosts.index(node_name) if node_name in hosts else values["rank"] // values["local_world_size"],
        num_nodes=nodes,
        hosts=hosts,
        one_task_per_node=values["local_world_size"] == 1,
        master_addr=environ.get("MASTER_ADDR") or _first_host(hosts, nodes, name),
        master_port=None,
        launch_id=_launch_id(environ, table),
        sources=dict(table) | {"master_addr": "SLURM_NODELIST" if len(hosts) > 1 else "this host"},
    )


def _select_table(environ: Mapping[str, str], name: str) -> dict[str, str]:
    """The complete table, or the one with the most variables set."""
    tables = [table for table in VARIABLE_TABLES[name] if environ.get(table["rank"])]
    return max(tables, key=lambda table: sum(bool(environ.get(variable)) for variable in table.values()))


def _require_all_variables(table: Mapping[str, str], values: Mapping[str, int]) -> None:
    missing = [variable for noun, variable in table.items() if noun not in values]
    if missing:
        raise Failure(
            f"started by mpirun, but {', '.join(missing)} is not set",
            found=", ".join(f"{table[noun]}={value}" for noun, value in values.items()),
            fix="start it with Open MPI's mpirun, or with srun: they set the local rank",
            code=ExitCode.LAUNCH_CONFLICT,
        )


def _refuse_out_of_range(table: Mapping[str, str], values: Mapping[str, int]) -> None:
    for rank, size in (("rank", "world_size"), ("local_rank", "local_world_size"), ("local_rank", "world_size")):
        if values[rank] >= values[size]:
            raise Failure(
                f"{table[rank]} must be below {table[size]}",
                found=f"{table[rank]}={values[rank]} {table[size]}={values[size]}",
                fix="do not set these variables by hand; mpirun sets them",
                code=ExitCode.LAUNCH_CONFLICT,
            )


def _read_hosts(environ: Mapping[str, str], machine: Machine, nodes: int) -> tuple[str, ...]:
    """The job's first `nodes` hosts, from SLURM_NODELIST.

    Mpirun's daemons change SLURM_JOB_NODELIST.
    """
    if nodes == 1:
        return (machine.hostname,)
    names = environ.get("SLURM_NODELIST")
    return expand_hosts(names, "SLURM_NODELIST")[:nodes] if names else ()


def _first_host(hosts: tuple[str, ...], nodes: int, name: str) -> str:
    if hosts:
        return hosts[0] if nodes > 1 else "127.0.0.1"
    export = "-x MASTER_ADDR=HOST" if name == "openmpi" else "-genv MASTER_ADDR HOST"
    raise Failure(
        "mpirun started ranks on several nodes, and nothing tells which host has rank 0",
        found="MASTER_ADDR is not set",
        fix=f"mpirun {export} ..., with the host of rank 0",
        code=ExitCode.LAUNCH_CONFLICT,
    )


def _launch_id(environ: Mapping[str, str], table: Mapping[str, str]) -> str:
    """The launch_id of this mpirun: its own id if there is one, and the Slurm job.

    Hydra sets no id, but passes the environment on to all hosts, so the job id of PBS or LSF
    is used.
    """
    mpirun_id = next((environ[name] for name in MPIRUN_ID_VARIABLES if environ.get(name)), "")
    if not mpirun_id and table is HYDRA_VARIABLES:
        mpirun_id = batch_job_id(environ)
    return f"mpi:{environ.get('SLURM_JOB_ID', '')}:{environ.get('SLURM_RESTART_COUNT', '0')}:{mpirun_id}"
