"""`run_all_checks` makes the plan, and then runs all checks that start no rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from entrypoint.console import shell_command
from entrypoint.doctor import fabric, full, gpu, host, network, paths, variables
from entrypoint.doctor.context import CheckContext, Finding, ok, warn
from entrypoint.doctor.runner import Check, run_check, run_checks
from entrypoint.plan import Plan, make_plan

# The plan gets the same time; with Python's start the sum is below 10 s even if something hangs.
CHECKS_TIMEOUT_S = 4.0
CHECKS: Mapping[str, Check] = {
    "gpus": gpu.check,
    "cuda": gpu.check_cuda,
    "memory": host.check_memory_and_limits,
    "cores": host.check_cores,
    "places": paths.check,
    "network": network.check,
    "fabric": fabric.check,
    "variables": variables.check,
}


def run_all_checks(base: CheckContext, full_with: Sequence[str] | None = None) -> list[Finding]:
    """Run all checks that start no rank, within 10 seconds.

    base: a context without a plan, which is made here. full_with: launch arguments with which all
    ranks are started for an all-reduce; None skips that.
    """
    plans: list[Plan] = []
    planned = run_checks({"plan": lambda context: _check_plan(context, plans)}, base, CHECKS_TIMEOUT_S)
    context = replace(base, plan=plans[0] if plans else None)
    findings = [*planned, *run_checks(CHECKS, context, CHECKS_TIMEOUT_S)]
    if full_with is None or ("cuda", "fail") in {(finding.name, finding.state) for finding in findings}:
        return findings
    return [*findings, *run_check("all-reduce", lambda context: full.check_allreduce(context, full_with), context)]


def _check_plan(context: CheckContext, plans: list[Plan]) -> list[Finding]:
    """Report what would be started; make_plan raises a Failure if the launch would be refused."""
    planned = make_plan(context.environ, context.options)
    plans.append(planned)
    world = planned.world
    ranks = f"{planned.spawn} of {world.world_size} rank{'s' if world.world_size > 1 else ''}"
    start = f"{planned.launcher}: this task starts {ranks} on {planned.device}"
    return [
        ok("plan", f"{start}, node {world.node_rank} of {world.num_nodes}"),
        *(
            warn("plan", text, fix or f"see `{shell_command('entrypoint show')}`")
            for text, _, fix in (warning.partition(" fix: ") for warning in planned.warnings)
        ),
    ]
