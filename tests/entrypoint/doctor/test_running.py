"""Checks that hang, break or refuse beside others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from entrypoint.doctor import running
from entrypoint.doctor.findings import Finding, ok
from entrypoint.doctor.scene import Scene
from entrypoint.errors import ExitCode, Failure


def test_a_check_that_hangs_does_not_keep_the_others() -> None:
    for_ever = threading.Event()

    def hangs(scene: Scene) -> Sequence[Finding]:
        for_ever.wait()
        return []

    found = running.run({"places": hangs, "b": lambda scene: [ok("b", "x")]}, Scene(environ={}), 0.2)
    for_ever.set()
    assert [(finding.name, finding.state) for finding in found] == [("places", "fail"), ("b", "ok")]
    assert "a file server hangs" in found[0].text


def test_a_check_that_breaks_says_so() -> None:
    (found,) = running.run({"cores": lambda scene: [1 / 0]}, Scene(environ={}), 60.0)  # type: ignore[list-item]
    assert (found.name, found.state, "ZeroDivisionError" in found.text) == ("cores", "warn", True)


def test_a_refusal_inside_a_check_is_a_failure() -> None:
    def refuses(scene: Scene) -> Sequence[Finding]:
        raise Failure("no", fix="yes", code=ExitCode.NODE)

    (found,) = running.run({"gpus": refuses}, Scene(environ={}), 60.0)
    assert (found.name, found.state, found.text, found.fix) == ("gpus", "fail", "no", "yes")


def test_a_check_that_takes_all_threads_leaves_one_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, begin = threading.Event(), running.begin_thread

    def scarce(action: Callable[[], None]) -> None:
        """None is left once the first check has begun, which has half a second for it."""
        if begun.is_set():
            raise RuntimeError("can't start new thread")
        begin(action)
        begun.wait(0.5)

    def greedy(scene: Scene) -> Sequence[Finding]:
        begun.set()
        return [ok("memory", "x")]

    monkeypatch.setattr(running, "begin_thread", scarce)
    found = running.run({"memory": greedy, "cores": lambda scene: [ok("cores", "x")]}, Scene(environ={}), 60.0)
    assert [finding.name for finding in found] == ["memory", "cores"]
