"""From this place to its findings: the plan first, and then all that can be known without starting a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from entrypoint.doctor import clock, cores, fabric, full, gpus, memory, names, places, variables
from entrypoint.doctor.findings import Finding, ok, warn
from entrypoint.doctor.running import Check, asked, run
from entrypoint.doctor.scene import Scene
from entrypoint.plan import Plan
from entrypoint.planning import make_plan

LIMIT_S = 4.0  # the plan before has as much: with Python's start that is below 10 s, whatever hangs
ALL: Mapping[str, Check] = {
    "gpus": gpus.check,
    "memory": memory.check,
    "cores": cores.check,
    "places": places.check,
    "clock": clock.check,
    "network": names.check,
    "fabric": fabric.check,
    "variables": variables.check,
}


def examine(base: Scene, full_with: Sequence[str] | None = None) -> list[Finding]:
    """Everything that can be known without starting a rank, within 10 seconds.

    base: without a plan, which is made. full_with: launch arguments with which all ranks are started, too.
    """
    plans: list[Plan] = []
    planned = run({"plan": lambda scene: _planned(scene, plans)}, base, LIMIT_S)
    scene = replace(base, plan=plans[0] if plans else None)
    found = [*planned, *run(ALL, scene, LIMIT_S)]
    if full_with is None:
        return found
    return [*found, *asked("all-reduce", lambda scene: full.check(scene, full_with), scene)]


def _planned(scene: Scene, plans: list[Plan]) -> list[Finding]:
    """What would be started, or why that would be refused."""
    planned = make_plan(scene.environ, scene.options)
    plans.append(planned)
    world = planned.world
    ranks = f"{planned.spawn} of {world.world_size} rank{'s' if world.world_size > 1 else ''}"
    start = f"{planned.launcher}: this task starts {ranks} on {planned.device}"
    return [ok("plan", f"{start}, node {world.node_rank} of {world.num_nodes}"), *map(_warned, planned.warnings)]


def _warned(warning: str) -> Finding:
    said, _, fix = warning.partition(" fix: ")
    return warn("plan", said, fix or "see `entrypoint show`")
