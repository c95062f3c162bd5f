"""`run_all_checks` makes the plan, and then runs all checks that need no rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from entrypoint.doctor import fabric, full, gpu, host, network, paths, variables
from entrypoint.doctor.context import CheckContext, Finding, ok, warn
from entrypoint.doctor.runner import Check, run_check, run_checks
from entrypoint.plan import Plan, make_plan

CHECKS_TIMEOUT_S = 4.0  # the plan before has as much: with Python's start that is below 10 s, whatever hangs
CHECKS: Mapping[str, Check] = {
    "gpus": gpu.check,
    "memory": host.check_memory_and_limits,
    "cores": host.check_cores,
    "places": paths.check,
    "clock": host.check_clock,
    "network": network.check,
    "fabric": fabric.check,
    "variables": variables.check,
}


def run_all_checks(base: CheckContext, full_with: Sequence[str] | None = None) -> list[Finding]:
    """Everything that can be known without starting a rank, within 10 seconds.

    base: without a plan, which is made. full_with: launch arguments with which all ranks are started, too.
    """
    plans: list[Plan] = []
    planned = run_checks({"plan": lambda scene: _check_plan(scene, plans)}, base, CHECKS_TIMEOUT_S)
    scene = replace(base, plan=plans[0] if plans else None)
    found = [*planned, *run_checks(CHECKS, scene, CHECKS_TIMEOUT_S)]
    if full_with is None:
        return found
    return [*found, *run_check("all-reduce", lambda scene: full.check_allreduce(scene, full_with), scene)]


def _check_plan(scene: CheckContext, plans: list[Plan]) -> list[Finding]:
    """What would be started, or why that would be refused."""
    planned = make_plan(scene.environ, scene.options)
    plans.append(planned)
    world = planned.world
    ranks = f"{planned.spawn} of {world.world_size} rank{'s' if world.world_size > 1 else ''}"
    start = f"{planned.launcher}: this task starts {ranks} on {planned.device}"
    return [
        ok("plan", f"{start}, node {world.node_rank} of {world.num_nodes}"),
        *map(_warning_finding, planned.warnings),
    ]


def _warning_finding(warning: str) -> Finding:
    said, _, fix = warning.partition(" fix: ")
    return warn("plan", said, fix or "see `entrypoint show`")
