"""This launcher reads torchrun's variables into an Allocation of one complete rank.

`accelerate launch`, `entrypoint` itself and users by hand set the same variables.
"""

from __future__ import annotations

from collections.abc import Mapping

from entrypoint.errors import ExitCode, Failure
from entrypoint.launchers import per_node
from entrypoint.launchers.allocation import Allocation
from entrypoint.machine import Machine
from entrypoint.world import TORCHRUN_VARIABLES, is_loopback, is_whole_number, parse_port, parse_whole_number

CORE_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")
_OTHER_NAMES = {"GROUP_RANK": "NODE_RANK", "GROUP_WORLD_SIZE": "NNODES"}  # of scripts and other libraries
_SIZE_VARIABLE_BY_RANK = {"RANK": "WORLD_SIZE", "LOCAL_RANK": "LOCAL_WORLD_SIZE", "GROUP_RANK": "GROUP_WORLD_SIZE"}
_NUMBERS = (*_SIZE_VARIABLE_BY_RANK, *_SIZE_VARIABLE_BY_RANK.values())


def has_rank_variables(environ: Mapping[str, str]) -> bool:
    """Whether torchrun's variables are set.

    Kubeflow and others set RANK to the node's number and WORLD_SIZE to the number of nodes or ranks,
    without LOCAL_RANK: those are no ranks.

    Raises:
        Failure: LAUNCH_CONFLICT if only some are set, with the missing ones.
    """
    present = [name for name in CORE_VARIABLES if environ.get(name)]
    if present == ["RANK", "WORLD_SIZE"] and _is_rank_a_node_rank(environ):
        return False
    if present and len(present) < len(CORE_VARIABLES):
        missing = [name for name in CORE_VARIABLES if name not in present]
        raise Failure(
            f"incomplete torchrun variables: {', '.join(present)} without {', '.join(missing)}",
            found=" ".join(f"{name}={environ[name]}" for name in present),
            expected=" ".join(CORE_VARIABLES) + " together, or none of them",
            fix=f"unset {' '.join(present)}, or start the program with torchrun or srun, which set them all",
            code=ExitCode.LAUNCH_CONFLICT,
        )
    return bool(present)


def _is_rank_a_node_rank(environ: Mapping[str, str]) -> bool:
    """Whether RANK is a node's number: WORLD_SIZE describes the nodes of PET_*, or those of another platform.

    Source: the training operator's pkg/controller.v1/pytorch/envvar.go, WORLD_SIZE = replicas x nprocPerNode.
    """
    nodes, procs = environ.get("PET_NNODES", ""), environ.get("PET_NPROC_PER_NODE", "")
    if not nodes:
        return any(platform.rank_counts_nodes for platform in per_node.find_platforms(environ)[:1])
    sizes = {nodes}
    if is_whole_number(nodes) and is_whole_number(procs):
        sizes.add(str(int(nodes) * int(procs)))
    return environ["WORLD_SIZE"] in sizes and environ.get("PET_NODE_RANK", environ["RANK"]) == environ["RANK"]


def repeats_numbers(environ: Mapping[str, str], outer: Allocation) -> bool:
    """Whether CORE_VARIABLES only repeat the numbers of the launcher around them, and the rest is not complete."""
    numbers = [str(outer.task), str(outer.local_task), str(outer.num_tasks)]
    is_complete = all(map(environ.get, ("LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")))
    return not is_complete and numbers == [environ[name] for name in CORE_VARIABLES]


def read_allocation(environ: Mapping[str, str], machine: Machine, outer: Allocation | None = None) -> Allocation:
    """The Allocation of one rank, from torchrun's variables.

    outer: of the launcher whose numbers they repeat; it knows the nodes.

    Raises:
        Failure: LAUNCH_CONFLICT for impossible numbers or a missing master address.
    """
    names = {name: name if environ.get(name) else _OTHER_NAMES.get(name, name) for name in _NUMBERS}
    values = {name: parse_whole_number(used, environ[used]) for name, used in names.items() if environ.get(used)}
    if outer and not outer.exchanges_hosts:  # otherwise its numbers of nodes are guesses
        values |= {"GROUP_RANK": outer.node_rank, "GROUP_WORLD_SIZE": outer.num_nodes}
    num_gpus = 0 if is_loopback(environ.get("MASTER_ADDR", "")) else len(machine.gpus)  # then all ranks are here
    local_size, warnings = _local_world_size(values, num_gpus, outer)
    values["LOCAL_WORLD_SIZE"] = local_size
    values.setdefault("GROUP_RANK", values["RANK"] // local_size)
    values.setdefault("GROUP_WORLD_SIZE", -(-values["WORLD_SIZE"] // local_size))
    _refuse_out_of_range(values)
    nodes = values["GROUP_WORLD_SIZE"]
    return Allocation(
        launcher="torchrun",
        task=values["RANK"],
        num_tasks=values["WORLD_SIZE"],
        local_task=values["LOCAL_RANK"],
        tasks_on_node=local_size,
        node_rank=values["GROUP_RANK"],
        num_nodes=nodes,
        hosts=(machine.hostname,) if nodes == 1 else (),
        one_task_per_node=False,
        master_addr=_master_addr(environ, values["WORLD_SIZE"]),
        master_port=parse_port("MASTER_PORT", environ["MASTER_PORT"]) if environ.get("MASTER_PORT") else None,
        launch_id=_launch_id(environ),
        agent_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        sources={
            field: variable if environ.get(variable) else "derived" for field, variable in TORCHRUN_VARIABLES.items()
        },
        warnings=warnings,
    )


def _local_world_size(
    values: Mapping[str, int], num_gpus: int, outer: Allocation | None
) -> tuple[int, tuple[str, ...]]:
    rank, world = values["RANK"], max(values["WORLD_SIZE"], 1)
    per_node = -(-world // values["GROUP_WORLD_SIZE"]) if values.get("GROUP_WORLD_SIZE") else num_gpus or world
    size = max(values.get("LOCAL_WORLD_SIZE", min(per_node, world)), 1)
    if "LOCAL_WORLD_SIZE" in values:
        fits = outer is None or outer.exchanges_hosts or size == outer.tasks_on_node
    else:
        places = (values["LOCAL_RANK"], values.get("GROUP_RANK", rank // size))
        fits = world == 1 or places == (rank % size, rank // size)
    if not fits:
        raise Failure(
            "LOCAL_WORLD_SIZE is missing or wrong: the other numbers do not fit it",
            found=", ".join(f"{name}={value}" for name, value in values.items()) + f", GPUs visible {num_gpus}",
            expected=f"{outer.launcher}: {outer.tasks_on_node} tasks on this node" if outer else None,
            fix="set LOCAL_WORLD_SIZE to the number of ranks on this node and GROUP_RANK to its number; under srun or "
            "mpirun unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE: the launcher's own numbers are read",
            code=ExitCode.LAUNCH_CONFLICT,
        )
    if world == 1 or "LOCAL_WORLD_SIZE" in values:
        return size, ()
    return size, (f"LOCAL_WORLD_SIZE is not set: taken as {size}. fix: set it to the number of ranks on this node",)


def _refuse_out_of_range(values: Mapping[str, int]) -> None:
    if values["LOCAL_WORLD_SIZE"] > values["WORLD_SIZE"]:
        raise Failure(
            "LOCAL_WORLD_SIZE is larger than WORLD_SIZE",
            found=f"LOCAL_WORLD_SIZE={values['LOCAL_WORLD_SIZE']} WORLD_SIZE={values['WORLD_SIZE']}",
            fix="unset both, and let torchrun or srun set them",
            code=ExitCode.LAUNCH_CONFLICT,
        )
    for rank, size in _SIZE_VARIABLE_BY_RANK.items():
        if values[rank] >= values[size]:
            raise Failure(
                f"{rank} must be below {size}",
                found=f"{rank}={values[rank]} {size}={values[size]}",
                expected=f"{rank} from 0 to {size} - 1",
                fix=f"unset {rank} and {size}, and let torchrun or srun set them",
                code=ExitCode.LAUNCH_CONFLICT,
            )


def _master_addr(environ: Mapping[str, str], world_size: int) -> str:
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]
    if missing and world_size > 1:
        raise Failure(
            f"torchrun variables for {world_size} ranks without {' and '.join(missing)}",
            fix=f"set {' and '.join(missing)} to the host and a free port of rank 0, the same for all ranks",
            code=ExitCode.LAUNCH_CONFLICT,
        )
    return environ.get("MASTER_ADDR") or "127.0.0.1"


def _launch_id(environ: Mapping[str, str]) -> str:
    # With Slurm's restart count, since a job script that sets the rendezvous id sets the same one
    # after a requeue.
    restart_variables = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
    variables = (*restart_variables, "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
    return "torchrun:" + ":".join(environ.get(name, "") for name in variables)
