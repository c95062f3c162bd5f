"""The short form that is asked before each training: what is not ok, and is neither refused nor told anyway."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from entrypoint.cgroups import Place
from entrypoint.doctor import cores, memory, places, report
from entrypoint.doctor.findings import Finding
from entrypoint.doctor.running import Check, run
from entrypoint.doctor.scene import Scene
from entrypoint.errors import ExitCode, Failure
from entrypoint.folding import columns_of
from entrypoint.plan import Plan

LIMIT_S = 0.4
# A failure of these is certain to end a training on GPUs, and torch's own words for it help nobody.
CERTAIN = ("driver", "compute mode")


def look_around(
    planned: Plan, environ: Mapping[str, str], *, workers: int | None, terminal: int | None = None, root: Place = "/"
) -> tuple[str, ...]:
    """The lines that this task is to say, in less than half a second; none where all is well.

    One task of each node says them, on other nodes than rank 0's with the host's name. workers: data workers of each
    rank, where their number was chosen. terminal: the descriptor of one, if the lines go to one.

    Raises:
        Failure: NODE, where a training on this node's GPUs is certain to fail.
    """
    found = findings(Scene(environ=environ, plan=planned, workers=workers, root=root))
    _refuse(found)
    if planned.world.local_rank > 0:
        return ()
    if planned.world.rank > 0:
        found = [replace(finding, name=f"{planned.hostname}: {finding.name}") for finding in found]
    if terminal is None:
        return tuple(report.as_lines(found, colour=False))
    return tuple(report.as_lines(found, colour=report.coloured(True, environ), columns=columns_of(terminal)))


def findings(scene: Scene) -> list[Finding]:
    """What is not ok. A check that is not ready in time says nothing: the training will meet what keeps it waiting."""
    found = run(checks(scene), scene, LIMIT_S, late=lambda name, limit_s: [])
    return [finding for finding in found if finding.state != "ok"]


def checks(scene: Scene) -> dict[str, Check]:
    """Those that concern this plan. What looks at GPUs is loaded where there are some."""
    chosen: dict[str, Check] = {"memory": memory.brief, "cores": cores.brief, "places": places.brief}
    if scene.plan is not None and scene.plan.device == "cuda":
        from entrypoint.doctor import gpus

        chosen = {"gpus": gpus.brief, **chosen}
    return chosen


def _refuse(found: Sequence[Finding]) -> None:
    for finding in found:
        if finding.state == "fail" and finding.name in CERTAIN:
            raise Failure(finding.text, fix=finding.fix, code=ExitCode.NODE)
