"""Tasks without a launcher: this machine alone, or machines that are named with --nodes."""

from __future__ import annotations

import os
from typing import Any

from entrypoint.launchers.allocation import LOOPBACK, Allocation
from entrypoint.machine import Machine
from entrypoint.options import LaunchOptions


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
        # Without the number of nodes: tasks that disagree on it must meet to report that. Without the
        # interface: `fe80::1%eth0` may be `fe80::1%ib0` on another node.
        launch_id=f"hand:{addr.partition('%')[0]}:{options.master_port}",
        sources={"node_rank": "--node-rank", "num_nodes": "--nodes", "master_addr": "--master-addr"},
    )


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
