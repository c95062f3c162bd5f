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
# A failure of these is certain to end a training on GPUs, and torch's own words for it help nobody.
FATAL_FINDINGS = ("driver", "compute mode")


def run_preflight(
    planned: Plan, environ: Mapping[str, str], *, workers: int | None, terminal: int | None = None, root: StrPath = "/"
) -> tuple[str, ...]:
    """The lines that this task is to say, in less than half a second; none where all is well.

    One task of each node says them, on other nodes than rank 0's with the host's name. workers: data workers of each
    rank, where their number was chosen. terminal: the descriptor of one, if the lines go to one.

    Raises:
        Failure: NODE, where a training on this node's GPUs is certain to fail.
    """
    found = preflight_findings(CheckContext(environ=environ, plan=planned, workers=workers, root=root))
    _refuse_fatal_findings(found)
    if planned.world.local_rank > 0:
        return ()
    if planned.world.rank > 0:
        found = [replace(finding, name=f"{planned.hostname}: {finding.name}") for finding in found]
    if terminal is None:
        return tuple(report.as_lines(found, colour=False))
    return tuple(report.as_lines(found, colour=report.use_color(True, environ), columns=terminal_columns(terminal)))


def preflight_findings(scene: CheckContext) -> list[Finding]:
    """What is not ok. A check that is not ready in time says nothing: the training will meet what keeps it waiting."""
    found = run_checks(preflight_checks(scene), scene, PREFLIGHT_TIMEOUT_S, late=lambda name, limit_s: [])
    return [finding for finding in found if finding.state != "ok"]


def preflight_checks(scene: CheckContext) -> dict[str, Check]:
    """Those that concern this plan. What looks at GPUs is loaded where there are some."""
    chosen: dict[str, Check] = {
        "memory": host.memory_and_limits_preflight,
        "cores": host.cores_preflight,
        "places": paths.preflight,
    }
    if scene.plan is not None and scene.plan.device == "cuda":
        from entrypoint.doctor import gpu

        chosen = {"gpus": gpu.preflight, **chosen}
    return chosen


def _refuse_fatal_findings(found: Sequence[Finding]) -> None:
    for finding in found:
        if finding.state == "fail" and finding.name in FATAL_FINDINGS:
            raise Failure(finding.text, fix=finding.fix, code=ExitCode.NODE)
