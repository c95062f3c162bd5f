"""Checks that hang, break or refuse beside others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from unittest.mock import Mock

import pytest

from entrypoint.doctor import runner
from entrypoint.doctor.context import CheckContext, Finding, ok
from entrypoint.errors import ExitCode, Failure


def test_a_check_that_hangs_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for_ever, answered = threading.Event(), threading.Event()

    def answers(scene: CheckContext) -> Sequence[Finding]:
        answered.set()
        return [ok("b", "x")]

    def hangs(scene: CheckContext) -> Sequence[Finding]:
        for_ever.wait()
        return []

    # The limit counts from when the one that answers has been at work: a busy machine is not to decide.
    clock = Mock(monotonic=lambda: (answered.wait(60), time.monotonic())[1])
    monkeypatch.setattr(runner, "time", clock)
    findings = runner.run_checks({"places": hangs, "b": answers}, CheckContext(environ={}), 0.2)
    for_ever.set()
    assert [(finding.name, finding.state) for finding in findings] == [("places", "fail"), ("b", "ok")]
    assert "a file server hangs" in findings[0].text


def test_a_check_that_breaks_says_so() -> None:
    (finding,) = runner.run_checks({"cores": lambda scene: [1 / 0]}, CheckContext(environ={}), 60.0)  # type: ignore[list-item]
    assert (finding.name, finding.state, "ZeroDivisionError" in finding.text) == ("cores", "warn", True)


def test_a_refusal_inside_a_check_is_a_failure() -> None:
    def refuses(scene: CheckContext) -> Sequence[Finding]:
        raise Failure("no", fix="yes", code=ExitCode.NODE)

    (finding,) = runner.run_checks({"gpus": refuses}, CheckContext(environ={}), 60.0)
    assert (finding.name, finding.state, finding.text, finding.fix) == ("gpus", "fail", "no", "yes")


def test_a_check_that_takes_all_threads_leaves_one_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, begin = threading.Event(), runner.start_daemon_thread

    def scarce(action: Callable[[], None]) -> None:
        """None is left once the first check has begun, which has half a second for it."""
        if begun.is_set():
            raise RuntimeError("can't start new thread")
        begin(action)
        begun.wait(0.5)

    def greedy(scene: CheckContext) -> Sequence[Finding]:
        begun.set()
        return [ok("memory", "x")]

    monkeypatch.setattr(runner, "start_daemon_thread", scarce)
    findings = runner.run_checks(
        {"memory": greedy, "cores": lambda scene: [ok("cores", "x")]}, CheckContext(environ={}), 60.0
    )
    assert [finding.name for finding in findings] == ["memory", "cores"]
