"""An Allocation says what the launcher gave this task; every launcher module returns one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Launcher = Literal["slurm-task", "slurm-node", "torchrun", "openmpi", "pmi", "pet", "local"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """This task's place among the launcher's tasks (a task may yet become several ranks).

    Attributes:
        task: number of this task in [0, num_tasks); local_task: among the tasks of its node.
        tasks_here: tasks on this node. node_rank: in [0, num_nodes).
        hosts: the world's hosts in node_rank order; empty where the launcher does not tell.
        may_spawn: whether this task is alone on its node everywhere, so that it starts one rank per GPU.
        procs_per_node: ranks per node as the launcher asked, or None.
        master_addr, master_port: where rank 0 listens; the port is None where nothing fixes it.
        key: the same on all tasks of this launch and on no other: ports and the run's nonce derive from it.
        agent_store: the launcher's own store already listens on the port (torchrun).
        sources: field of the world -> the variable or fact that it came from.
    """

    launcher: Launcher
    task: int
    num_tasks: int
    local_task: int
    tasks_here: int
    node_rank: int
    num_nodes: int
    hosts: tuple[str, ...]
    may_spawn: bool
    master_addr: str
    master_port: int | None
    key: str
    procs_per_node: int | None = None
    agent_store: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
