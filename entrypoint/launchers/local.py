"""This launcher allocates one task per node without a scheduler.

The nodes are this machine alone, machines given with --nodes, or those of PET_* variables
(Kubeflow).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from entrypoint.errors import ExitCode, Failure
from entrypoint.launchers.allocation import Allocation
from entrypoint.machine import Machine
from entrypoint.options import LaunchOptions
from entrypoint.world import parse_port, parse_whole_number

LOOPBACK = "127.0.0.1"


def single_node_allocation(machine: Machine, warnings: tuple[str, ...] = ()) -> Allocation:
    """One node without a launcher. MASTER_ADDR is ignored: the ranks meet on loopback."""
    return Allocation(
        launcher="local",
        **_one_task_per_node(node_rank=0, num_nodes=1),
        hosts=(machine.hostname,),
        master_addr=LOOPBACK,
        master_port=None,
        launch_id=f"local:{os.urandom(16).hex()}",
        sources={"rank": "this process", "num_nodes": "no launcher found", "master_addr": "one node: loopback"},
        warnings=warnings,
    )


def manual_allocation(options: LaunchOptions, machine: Machine) -> Allocation:
    """`--nodes --node-rank --master-addr [--master-port]`, one task started on each machine."""
    nodes, node_rank, addr = options.nodes or 1, options.node_rank or 0, options.master_addr or LOOPBACK
    return Allocation(
        launcher="local",
        **_one_task_per_node(node_rank=node_rank, num_nodes=nodes),
        hosts=(machine.hostname,) if nodes == 1 else (),
        master_addr=addr,
        master_port=options.master_port,
        # Without the number of nodes: tasks that disagree on it must meet to report that.
        launch_id=f"hand:{_strip_interface(addr)}:{options.master_port}",
        sources={"node_rank": "--node-rank", "num_nodes": "--nodes", "master_addr": "--master-addr"},
    )


def pet_allocation(environ: Mapping[str, str], machine: Machine) -> Allocation:
    """Torchrun's flags as PET_* variables, which Kubeflow sets: one task on each node.

    Raises:
        Failure: LAUNCH_CONFLICT for an elastic number of nodes or a missing variable.
    """
    nodes = _parse_num_nodes("PET_NNODES", environ["PET_NNODES"])
    needed = ("PET_NODE_RANK", "PET_MASTER_ADDR") if nodes > 1 else ()
    missing = [name for name in needed if not environ.get(name)]
    if missing:
        raise _pet_failure(f"PET_NNODES={nodes} without {', '.join(missing)}", f"set {', '.join(missing)} on each node")
    node_rank = parse_whole_number("PET_NODE_RANK", environ.get("PET_NODE_RANK") or "0")
    if node_rank >= nodes:
        raise _pet_failure(f"PET_NODE_RANK={node_rank} must be below PET_NNODES={nodes}", "count nodes from 0")
    addr, port = environ.get("PET_MASTER_ADDR") or LOOPBACK, environ.get("PET_MASTER_PORT")
    procs = environ.get("PET_NPROC_PER_NODE") or "auto"
    return Allocation(
        launcher="pet",
        **_one_task_per_node(node_rank=node_rank, num_nodes=nodes),
        hosts=(machine.hostname,) if nodes == 1 else (),
        master_addr=addr,
        master_port=parse_port("PET_MASTER_PORT", port) if port else None,
        procs_per_node=None if procs in ("auto", "gpu", "cpu") else _parse_positive("PET_NPROC_PER_NODE", procs),
        launch_id=f"pet:{_strip_interface(addr)}:{port}:{nodes}:{environ.get('PET_RDZV_ID', '')}",
        sources={
            "node_rank": "PET_NODE_RANK",
            "num_nodes": "PET_NNODES",
            "local_world_size": "PET_NPROC_PER_NODE",
            "master_addr": "PET_MASTER_ADDR",
            "master_port": "PET_MASTER_PORT",
        },
    )


def _strip_interface(address: str) -> str:
    """Without the interface.

    `fe80::1%eth0` may be `fe80::1%ib0` on another node, and launch_ids must be equal.
    """
    return address.partition("%")[0]


def _one_task_per_node(*, node_rank: int, num_nodes: int) -> dict[str, Any]:
    return {
        "task": node_rank,
        "num_tasks": num_nodes,
        "local_task": 0,
        "tasks_on_node": 1,
        "node_rank": node_rank,
        "num_nodes": num_nodes,
        "one_task_per_node": True,
    }


def _parse_num_nodes(variable: str, text: str) -> int:
    if ":" in text:
        raise _pet_failure(f"{variable}={text}: an elastic number of nodes", f"set {variable} to one number")
    return _parse_positive(variable, text)


def _parse_positive(variable: str, text: str) -> int:
    number = parse_whole_number(variable, text)
    if number < 1:
        raise _pet_failure(f"{variable}={text}: there must be at least one", f"set {variable} to 1 or more")
    return number


def _pet_failure(what: str, fix: str) -> Failure:
    return Failure(what, fix=fix, code=ExitCode.LAUNCH_CONFLICT)
