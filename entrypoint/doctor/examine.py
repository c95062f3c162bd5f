"""From this place to its findings: all checks at once, each with a limit, so that none can keep the others waiting."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from entrypoint.doctor import clock, cores, fabric, full, gpus, memory, names, places, variables
from entrypoint.doctor.findings import Finding, fail, ok, refused, warn
from entrypoint.doctor.scene import Scene
from entrypoint.errors import Failure
from entrypoint.plan import Plan
from entrypoint.planning import make_plan

LIMIT_S = 4.0  # the plan before has as much: with Python's start that is below 10 s, whatever hangs
BRIEF_S = 0.4
Check = Callable[[Scene], Sequence[Finding]]

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
BRIEF: Mapping[str, Check] = {"memory": memory.brief, "cores": cores.check, "places": places.brief}


def examine(base: Scene, full_with: Sequence[str] | None = None) -> list[Finding]:
    """Everything that can be known without starting a rank, within 10 seconds.

    base: without a plan, which is made. full_with: launch arguments with which all ranks are started, too.
    """
    plans: list[Plan] = []
    planned = run({"plan": lambda asked: [_planned(asked, plans)]}, base, LIMIT_S)
    scene = replace(base, plan=plans[0] if plans else None)
    found = [*planned, *run(ALL, scene, LIMIT_S)]
    return (
        found
        if full_with is None
        else [*found, *_asked("all-reduce", lambda asked: full.check(asked, full_with), scene)]
    )


def brief(environ: Mapping[str, str], planned: Plan) -> tuple[Finding, ...]:
    """What is not ok of the things that are quick to see, within half a second, for the beginning of a training.

    A check that is not ready by then says nothing: the training will meet what keeps it waiting.
    """
    found = run(BRIEF, Scene(environ=environ, plan=planned), BRIEF_S, late=lambda name, limit_s: [])
    return tuple(finding for finding in found if finding.state != "ok")


def stuck(name: str, limit_s: float) -> list[Finding]:
    """The finding for a check that did not come back: what it asked would keep a training waiting as well."""
    text = f"no answer within {limit_s:g} s: {HANGS.get(name, 'something of it hangs')}"
    return [fail(name, text, "run `entrypoint doctor` once more; if it stays so, take another node")]


HANGS = {
    "plan": "the GPU driver or a file server hangs",
    "gpus": "the GPU driver hangs",
    "places": "a file server hangs",
    "clock": "a file server hangs",
    "network": "the name service or the network hangs",
}


def run(
    checks: Mapping[str, Check],
    scene: Scene,
    limit_s: float,
    late: Callable[[str, float], Sequence[Finding]] = stuck,
) -> list[Finding]:
    """Start all, and take what is there at the limit, in the table's order. late: says what to tell of the rest."""
    answers = {name: _started(name, check, scene) for name, check in checks.items()}
    deadline = time.monotonic() + limit_s
    found: list[Finding] = []
    for name, answer in answers.items():
        try:
            found += answer.get(timeout=max(0.001, deadline - time.monotonic()))
        except queue.Empty:
            found += late(name, limit_s)
    return found


def _started(name: str, check: Check, scene: Scene) -> queue.SimpleQueue[Sequence[Finding]]:
    """A thread that nobody has to wait for: a file server that hangs is not interrupted."""
    answer: queue.SimpleQueue[Sequence[Finding]] = queue.SimpleQueue()
    threading.Thread(target=lambda: answer.put(_asked(name, check, scene)), daemon=True, name=f"doctor {name}").start()
    return answer


def _asked(name: str, check: Check, scene: Scene) -> Sequence[Finding]:
    """A check that breaks says so, and the others go on."""
    try:
        return check(scene)
    except Failure as failure:
        return [refused(name, failure)]
    except Exception as error:
        text = f"could not be looked at: {type(error).__name__}: {error}"
        return [warn(name, text, "please report this line: the doctor should know what it means")]


def _planned(scene: Scene, plans: list[Plan]) -> Finding:
    """What would be started, or why that would be refused."""
    planned = make_plan(scene.environ, scene.options)
    plans.append(planned)
    world = planned.world
    ranks = f"{planned.spawn} of {world.world_size} rank{'s' if world.world_size > 1 else ''}"
    text = (
        f"{planned.launcher}: this task starts {ranks} on {planned.device}, node {world.node_rank} of {world.num_nodes}"
    )
    if planned.warnings:
        said, _, fix = planned.warnings[0].partition(" fix: ")
        return warn("plan", f"{text}; {said}", fix or "see `entrypoint show`")
    return ok("plan", text)
