"""The runner runs all checks concurrently with one time limit, so that none delays the others."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from entrypoint.doctor.context import CheckContext, Finding, fail, failure_finding, warn
from entrypoint.errors import Failure
from entrypoint.threads import start_daemon_thread

Check = Callable[[CheckContext], Sequence[Finding]]
TimeoutHandler = Callable[[str, float], Sequence[Finding]]
HANG_CAUSES = {
    "plan": "the GPU driver or a file server hangs",
    "gpus": "the GPU driver hangs",
    "places": "a file server hangs",
    "clock": "a file server hangs",
    "network": "the name service or the network hangs",
}


def timeout_findings(name: str, limit_s: float) -> list[Finding]:
    """The finding for a check that did not come back: what it asked would keep a training waiting as well."""
    text = f"no answer within {limit_s:g} s: {HANG_CAUSES.get(name, 'something of it hangs')}"
    return [fail(name, text, "run `entrypoint doctor` once more; if it stays so, take another node")]


def run_checks(
    checks: Mapping[str, Check], scene: CheckContext, limit_s: float, late: TimeoutHandler = timeout_findings
) -> list[Finding]:
    """Start all, and take what is there at the limit, in the table's order. late: says what to tell of the rest."""
    together = threading.Event()  # one that tries how many threads there can be would leave none for those behind it
    answers = {name: _start_check(name, check, scene, together) for name, check in checks.items()}
    together.set()
    deadline = time.monotonic() + limit_s
    found: list[Finding] = []
    for name, answer in answers.items():
        try:
            found += answer.get(timeout=max(0.001, deadline - time.monotonic()))
        except queue.Empty:
            found += late(name, limit_s)
    return found


def run_check(name: str, check: Check, scene: CheckContext) -> Sequence[Finding]:
    """A check that breaks says so, and the others go on."""
    try:
        return check(scene)
    except Failure as failure:
        return [failure_finding(name, failure)]
    except Exception as error:
        text = f"could not be looked at: {type(error).__name__}: {error}"
        return [warn(name, text, "please report this line: the doctor should know what it means")]


def _start_check(
    name: str, check: Check, scene: CheckContext, together: threading.Event
) -> queue.SimpleQueue[Sequence[Finding]]:
    """A thread that nobody has to wait for: a file server that hangs is not interrupted."""
    answer: queue.SimpleQueue[Sequence[Finding]] = queue.SimpleQueue()

    def act() -> None:
        together.wait()
        answer.put(run_check(name, check, scene))

    start_daemon_thread(act)
    return answer
