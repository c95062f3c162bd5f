"""mpirun's variables to an Allocation: Open MPI's own, or PMI's (MPICH, Intel MPI, `srun --mpi=pmi2`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from entrypoint import slurm
from entrypoint.allocation import Allocation
from entrypoint.errors import ExitCode, Failure
from entrypoint.host import Machine
from entrypoint.hostlist import expand_hosts
from entrypoint.world import integer

# Our noun -> the variable of each family.
TABLES: dict[str, dict[str, str]] = {
    "openmpi": {
        "rank": "OMPI_COMM_WORLD_RANK",
        "world_size": "OMPI_COMM_WORLD_SIZE",
        "local_rank": "OMPI_COMM_WORLD_LOCAL_RANK",
        "local_world_size": "OMPI_COMM_WORLD_LOCAL_SIZE",
    },
    "pmi": {
        "rank": "PMI_RANK",
        "world_size": "PMI_SIZE",
        "local_rank": "MPI_LOCALRANKID",
        "local_world_size": "MPI_LOCALNRANKS",
    },
}


def family(environ: Mapping[str, str]) -> Literal["openmpi", "pmi"] | None:
    """Which family started this process, if any.

    `srun --mpi=pmi2` sets PMI_* to the step's own numbers: the richer Slurm set then tells the same, and wins.
    """
    if environ.get("OMPI_COMM_WORLD_RANK"):
        return "openmpi"
    if not environ.get("PMI_RANK"):
        return None
    if slurm.in_step(environ):
        step = (environ["SLURM_PROCID"], environ["SLURM_STEP_NUM_TASKS"])
        return None if step == (environ["PMI_RANK"], environ.get("PMI_SIZE")) else "pmi"
    return "pmi"


def read(environ: Mapping[str, str], machine: Machine, name: Literal["openmpi", "pmi"]) -> Allocation:
    """The Allocation of one MPI rank.

    Raises:
        Failure: FACTS, for a missing variable, impossible numbers, or several nodes without an address.
    """
    table = TABLES[name]
    values = {noun: integer(variable, environ[variable]) for noun, variable in table.items() if environ.get(variable)}
    _require_all(table, values)
    _check(table, values)
    nodes = -(-values["world_size"] // values["local_world_size"])
    hosts = _hosts(environ, machine, nodes)
    here = environ.get("SLURMD_NODENAME") or machine.hostname
    return Allocation(
        launcher=name,
        task=values["rank"],
        num_tasks=values["world_size"],
        local_task=values["local_rank"],
        tasks_here=values["local_world_size"],
        node_rank=hosts.index(here) if here in hosts else values["rank"] // values["local_world_size"],
        num_nodes=nodes,
        hosts=hosts,
        may_spawn=values["local_world_size"] == 1,
        master_addr=environ.get("MASTER_ADDR") or _first_host(hosts, nodes, name),
        master_port=None,
        key=_key(environ),
        sources=dict(table) | {"master_addr": "SLURM_NODELIST" if len(hosts) > 1 else "this host"},
    )


def _require_all(table: Mapping[str, str], values: Mapping[str, int]) -> None:
    missing = [variable for noun, variable in table.items() if noun not in values]
    if missing:
        raise Failure(
            f"started by mpirun, but {', '.join(missing)} is not set",
            found=", ".join(f"{table[noun]}={value}" for noun, value in values.items()),
            fix="start it with Open MPI's mpirun, or with srun: then the place on the node is known",
            code=ExitCode.FACTS,
        )


def _check(table: Mapping[str, str], values: Mapping[str, int]) -> None:
    for rank, size in (("rank", "world_size"), ("local_rank", "local_world_size"), ("local_rank", "world_size")):
        if values[rank] >= values[size]:
            raise Failure(
                f"{table[rank]} must be below {table[size]}",
                found=f"{table[rank]}={values[rank]} {table[size]}={values[size]}",
                fix="do not set these variables by hand; mpirun sets them",
                code=ExitCode.FACTS,
            )


def _hosts(environ: Mapping[str, str], machine: Machine, nodes: int) -> tuple[str, ...]:
    """The job's first `nodes` hosts: mpirun's daemons see a job list of their own node, but SLURM_NODELIST stays."""
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
        code=ExitCode.FACTS,
    )


def _key(environ: Mapping[str, str]) -> str:
    """PMI's job id or PMIx's name space is one per mpirun; the Slurm job tells jobs on one node apart."""
    launch = environ.get("PMI_JOBID") or environ.get("PMIX_NAMESPACE") or environ.get("OMPI_MCA_ess_base_jobid") or ""
    return f"mpi:{environ.get('SLURM_JOB_ID', '')}:{environ.get('SLURM_RESTART_COUNT', '0')}:{launch}"
