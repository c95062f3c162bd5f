"""`run_preflight` runs a short form of the doctor before each training.

It reports only what is not ok, and leaves out what the training itself refuses or reports anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from entrypoint.console import terminal_columns, use_color
from entrypoint.doctor import gpu, host, paths, report
from entrypoint.doctor.context import CheckContext
from entrypoint.doctor.runner import Check, run_checks
from entrypoint.errors import ExitCode, Failure
from entrypoint.files import StrPath
from entrypoint.plan import Plan

PREFLIGHT_TIMEOUT_S = 0.4
# Without persistence mode NVML initializes GPU after GPU, which can take seconds on eight of them. What it says of the
# driver and the GPUs decides whether torch can start at all.
GPU_PREFLIGHT_TIMEOUT_S = 5.0
# A failure of these is certain to end a training on GPUs, and torch's own words for it help nobody.
# finding -> exit code: another node has another GPU, but all nodes have the same image.
FATAL_FINDINGS = {
    "driver": ExitCode.IMAGE_MISMATCH,
    "architecture": ExitCode.IMAGE_MISMATCH,
    "direct copies": ExitCode.IMAGE_MISMATCH,
    "compute mode": ExitCode.NODE,
    "gpus": ExitCode.NODE,
    "cuda": ExitCode.NODE,
}


def run_preflight(
    planned: Plan, environ: Mapping[str, str], *, workers: int | None, terminal: int | None = None, root: StrPath = "/"
) -> tuple[str, ...]:
    """Return the lines that this task prints; none if all is well. It takes less than half a second on CPUs.

    One task of each node prints them; nodes other than rank 0's add the host's name.

    Args:
        workers: data workers of each rank, where their number was chosen.
        terminal: the descriptor of a terminal, if the lines go to one.

    Raises:
        Failure: NODE or IMAGE_MISMATCH, where a training on this node's GPUs is certain to fail.
    """
    context = CheckContext(environ=environ, plan=planned, workers=workers, root=root)
    checks = preflight_checks(context)
    limit_s = GPU_PREFLIGHT_TIMEOUT_S if "gpus" in checks else PREFLIGHT_TIMEOUT_S
    # A check that is not ready in time says nothing: the training will meet what keeps it waiting.
    findings = run_checks(checks, context, limit_s, late=lambda name, limit_s: [])
    for finding in findings:
        if finding.state == "fail" and finding.name in FATAL_FINDINGS:
            raise Failure(finding.text, fix=finding.fix, code=finding.code or FATAL_FINDINGS[finding.name])
    if planned.world.local_rank > 0:
        return ()
    if planned.world.rank > 0:
        host = planned.hostname
        findings = [replace(finding, name=f"{host}: {finding.name}") for finding in findings]
    if terminal is None:
        return tuple(report.as_lines(findings, colour=False))
    colour, columns = use_color(True, environ), terminal_columns(terminal)
    return tuple(report.as_lines(findings, colour=colour, columns=columns))


def preflight_checks(context: CheckContext) -> dict[str, Check]:
    """The checks for this plan."""
    checks: dict[str, Check] = {
        "memory": host.memory_and_limits_preflight,
        "cores": host.cores_preflight,
        "places": paths.preflight,
    }
    if context.plan is not None and context.plan.device == "cuda":
        checks = {"gpus": gpu.preflight, "cuda": gpu.check_cuda, **checks}
    return checks
