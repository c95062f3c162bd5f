"""The runner runs all checks concurrently with one time limit, so that none delays the others."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from entrypoint.console import shell_command
from entrypoint.doctor.context import CheckContext, Finding, fail, failure_finding, warn
from entrypoint.errors import Failure
from entrypoint.threads import start_daemon_thread

Check = Callable[[CheckContext], Sequence[Finding]]
TimeoutHandler = Callable[[str, float], Sequence[Finding]]
HANG_CAUSES = {
    "plan": "the GPU driver or a file server hangs",
    "gpus": "the GPU driver hangs",
    "cuda": "the GPU driver hangs where CUDA starts (cuInit)",
    "places": "a file server hangs",
    "network": "the name service or the network hangs",
}


def timeout_findings(name: str, limit_s: float) -> list[Finding]:
    """The finding for a check that timed out; a training would wait for the same thing."""
    text = f"no answer within {limit_s:g} s: {HANG_CAUSES.get(name, 'something hangs')}"
    return [
        fail(name, text, f"run `{shell_command('entrypoint doctor')}` once more; if it stays so, take another node")
    ]


def run_checks(
    checks: Mapping[str, Check], context: CheckContext, limit_s: float, late: TimeoutHandler = timeout_findings
) -> list[Finding]:
    """Run all checks concurrently; return findings in the table's order.

    late: makes the findings of checks that time out.
    """
    all_started = threading.Event()  # the thread check must not leave too few threads for checks behind it
    answers = {name: _start_check(name, check, context, all_started) for name, check in checks.items()}
    all_started.set()
    deadline = time.monotonic() + limit_s
    findings: list[Finding] = []
    for name, answer in answers.items():
        try:
            findings += answer.get(timeout=max(0.001, deadline - time.monotonic()))
        except queue.Empty:
            findings += late(name, limit_s)
    return findings


def run_check(name: str, check: Check, context: CheckContext) -> Sequence[Finding]:
    """Run one check; an exception becomes a finding, so that the others continue."""
    try:
        return check(context)
    except Failure as failure:
        return [failure_finding(name, failure)]
    except Exception as error:
        text = f"could not be checked: {type(error).__name__}: {error}"
        return [warn(name, text, "please report this line: it is a bug of the doctor")]


def _start_check(
    name: str, check: Check, context: CheckContext, all_started: threading.Event
) -> queue.SimpleQueue[Sequence[Finding]]:
    """Start a check in a daemon thread: a call to a hanging file server cannot be interrupted."""
    answer: queue.SimpleQueue[Sequence[Finding]] = queue.SimpleQueue()

    def act() -> None:
        all_started.wait()
        answer.put(run_check(name, check, context))

    start_daemon_thread(act)
    return answer
