"""What a check is told."""

from __future__ import annotations

from machines import captured, machine

from entrypoint.doctor.context import CheckContext
from entrypoint.launchers import detect_allocation
from entrypoint.options import LaunchOptions
from entrypoint.plan import plan_allocation


def test_ranks_of_this_machine_come_from_the_plan() -> None:
    environ, options = captured("per-gpu/task-3@node02"), LaunchOptions(device="cpu")
    planned = plan_allocation(detect_allocation(environ, options, machine()), options, machine(), environ)
    scene = CheckContext(environ=environ, plan=planned)
    assert (scene.ranks_on_node, scene.ranks_of_task, scene.several_nodes, scene.on_cpu) == (2, 1, True, True)


def test_without_a_plan_ranks_are_those_asked_for() -> None:
    assert CheckContext(environ={}, options=LaunchOptions(procs_per_node=4)).ranks_on_node == 4
    assert CheckContext(environ={}, options=LaunchOptions(procs_per_node=4)).ranks_of_task == 4
    assert (CheckContext(environ={}).several_nodes, CheckContext(environ={}).on_cpu) == (False, False)
