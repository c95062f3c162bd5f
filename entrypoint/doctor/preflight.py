"""`run_preflight` runs a short form of the doctor before each training.

It reports only what is not ok, and leaves out what the training itself refuses or reports anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from entrypoint.console import terminal_columns
from entrypoint.doctor import host, paths, report
from entrypoint.doctor.context import CheckContext, Finding
from entrypoint.doctor.runner import Check, run_checks
from entrypoint.errors import ExitCode, Failure
from entrypoint.machine import StrPath
from entrypoint.plan import Plan

PREFLIGHT_TIMEOUT_S = 0.4
# These failures certainly end a training on GPUs, and torch's own message does not help.
FATAL_FINDINGS = ("driver", "compute mode")


def run_preflight(
    planned: Plan, environ: Mapping[str, str], *, workers: int | None, terminal: int | None = None, root: StrPath = "/"
) -> tuple[str, ...]:
    """Run the short checks in less than half a second; return the lines to print, if any.

    One task per node returns them, on nodes without rank 0 with the host's name. workers: data
    workers of each rank, if chosen. terminal: the descriptor of the terminal that the lines go to,
    if any.

    Raises:
        Failure: NODE if a training on this node's GPUs is certain to fail.
    """
    findings = preflight_findings(CheckContext(environ=environ, plan=planned, workers=workers, root=root))
    _refuse_fatal_findings(findings)
    if planned.world.local_rank > 0:
        return ()
    if planned.world.rank > 0:
        findings = [replace(finding, name=f"{planned.hostname}: {finding.name}") for finding in findings]
    if terminal is None:
        return tuple(report.as_lines(findings, colour=False))
    return tuple(report.as_lines(findings, colour=report.use_color(True, environ), columns=terminal_columns(terminal)))


def preflight_findings(context: CheckContext) -> list[Finding]:
    """The findings that are not ok. A check that takes too long is dropped.

    The training will meet the problem.
    """
    findings = run_checks(preflight_checks(context), context, PREFLIGHT_TIMEOUT_S, late=lambda name, limit_s: [])
    return [finding for finding in findings if finding.state != "ok"]


def preflight_checks(context: CheckContext) -> dict[str, Check]:
    """The checks for this plan. The GPU checks are imported only for a plan with GPUs."""
    checks: dict[str, Check] = {
        "memory": host.memory_and_limits_preflight,
        "cores": host.cores_preflight,
        "places": paths.preflight,
    }
    if context.plan is not None and context.plan.device == "cuda":
        from entrypoint.doctor import gpu

        checks = {"gpus": gpu.preflight, **checks}
    return checks


def _refuse_fatal_findings(findings: Sequence[Finding]) -> None:
    for finding in findings:
        if finding.state == "fail" and finding.name in FATAL_FINDINGS:
            raise Failure(finding.text, fix=finding.fix, code=ExitCode.NODE)
