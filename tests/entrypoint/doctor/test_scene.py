"""What a check is told."""

from __future__ import annotations

from machines import captured, machine

from entrypoint.detect import detect
from entrypoint.doctor.scene import Scene
from entrypoint.options import Options
from entrypoint.plan import plan


def test_ranks_of_this_machine_come_from_the_plan() -> None:
    environ, options = captured("per-gpu/task-3@node02"), Options(device="cpu")
    planned = plan(detect(environ, options, machine()), options, machine(), environ)
    scene = Scene(environ=environ, plan=planned)
    assert (scene.ranks_here, scene.ranks_of_task, scene.several_nodes, scene.on_cpu) == (2, 1, True, True)


def test_without_a_plan_ranks_are_those_asked_for() -> None:
    assert Scene(environ={}, options=Options(procs_per_node=4)).ranks_here == 4
    assert Scene(environ={}, options=Options(procs_per_node=4)).ranks_of_task == 4
    assert (Scene(environ={}).several_nodes, Scene(environ={}).on_cpu) == (False, False)
