"""Evidence is what a platform says of this task and its job; an Allocation, what the innermost launcher gave it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from entrypoint.platforms import Platform

LOOPBACK: Final = "127.0.0.1"
THIS_NODE_ONLY_FIX: Final = "for a training of this node alone: --nodes 1 --node-rank 0 --master-addr 127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """This task's place among the launcher's tasks (a task may start several ranks).

    Attributes:
        launcher: its name in `entrypoint show`.
        task: number of this task in [0, num_tasks); local_task: among the tasks of its node.
        tasks_on_node: the number of tasks on this node. node_rank: in [0, num_nodes).
        hosts: the world's hosts in node_rank order; empty if the launcher does not tell.
        one_task_per_node: so this task may start several ranks: one per GPU, or --procs-per-node.
        procs_per_node: ranks per node that the launcher requests, or None.
        master_addr, master_port: where rank 0 listens; the port is None if nothing sets it.
        launch_id: equal on all tasks of this launch, and another for every other launch as far as
            the launcher tells them apart; the ports derive from it.
        agent_store: the launcher's own store already listens on the port (torchrun).
        exchanges_hosts: the tasks tell each other their hosts before ranks start
            (entrypoint.exchange), because the launcher does not say where rank 0 is. The
            numbers of nodes and within a node are guesses until then.
        sources: field of the world -> the variable or fact that it came from.
    """

    launcher: str
    task: int
    num_tasks: int
    local_task: int
    tasks_on_node: int
    node_rank: int
    num_nodes: int
    hosts: tuple[str, ...]
    one_task_per_node: bool
    master_addr: str
    master_port: int | None
    launch_id: str
    procs_per_node: int | None = None
    agent_store: bool = False
    exchanges_hosts: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the variables of one platform say, whether or not it is the innermost one.

    Attributes:
        read: the Allocation of this task; may raise Failure. None: the platform started none here; its job is around.
        tasks: variable -> the number of tasks that it says there are.
        count_nodes: variable or file -> the number of nodes; may raise Failure.
    """

    platform: Platform
    read: Callable[[], Allocation] | None = None
    tasks: Mapping[str, int] = field(default_factory=dict)
    count_nodes: Callable[[], Mapping[str, int]] = dict
