"""All checks together: their order, their limits, and what breaks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from machines import captured, machine

from entrypoint.detect import detect
from entrypoint.doctor import examine
from entrypoint.doctor.findings import Finding, ok
from entrypoint.doctor.scene import Scene
from entrypoint.errors import ExitCode, Failure
from entrypoint.options import Options
from entrypoint.plan import Plan, plan

CPU = Options(device="cpu")


def alone() -> Plan:
    return plan(detect({}, CPU, machine()), CPU, machine(), {})


def test_a_check_that_hangs_does_not_keep_the_others() -> None:
    for_ever = threading.Event()

    def hangs(scene: Scene) -> Sequence[Finding]:
        for_ever.wait()
        return []

    found = examine.run({"places": hangs, "b": lambda scene: [ok("b", "x")]}, Scene(environ={}), 0.2)
    for_ever.set()
    assert [(finding.name, finding.state) for finding in found] == [("places", "fail"), ("b", "ok")]
    assert "a file server hangs" in found[0].text


def test_a_check_that_breaks_says_so() -> None:
    (found,) = examine.run({"cores": lambda scene: [1 / 0]}, Scene(environ={}), 60.0)  # type: ignore[list-item]
    assert (found.name, found.state, "ZeroDivisionError" in found.text) == ("cores", "warn", True)


def test_a_refusal_inside_a_check_is_a_failure() -> None:
    def refuses(scene: Scene) -> Sequence[Finding]:
        raise Failure("no", fix="yes", code=ExitCode.NODE)

    (found,) = examine.run({"gpus": refuses}, Scene(environ={}), 60.0)
    assert (found.name, found.state, found.text, found.fix) == ("gpus", "fail", "no", "yes")


def test_the_plan_comes_first_and_all_subjects_follow(tmp_path: Path) -> None:
    found = examine.examine(Scene(environ={"HOME": str(tmp_path)}, options=CPU, output=tmp_path))
    subjects = list(dict.fromkeys(finding.name for finding in found))
    assert subjects[:2] == ["plan", "gpus"]
    assert {"shared memory", "memory", "open files", "threads", "cores", "home", "user", "output"} <= set(subjects)
    assert subjects[-5:] == ["clock", "network", "fabric", "host python", "variables"]


def test_a_start_that_would_be_refused_is_a_failure_and_the_rest_is_looked_at() -> None:
    found = examine.examine(Scene(environ=captured("no-srun-two-nodes/batch-0@node01"), options=CPU))
    assert (found[0].name, found[0].state, "srun" in found[0].fix) == ("plan", "fail", True)
    assert len(found) > 5


def test_a_plans_warning_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    options = Options(procs_per_node=1)
    gpus = ("GPU-fake-0", "GPU-fake-1")
    monkeypatch.setattr("entrypoint.planning.read_machine", lambda environ, gpus: machine(gpus=GPUS))
    GPUS = gpus
    found = examine.examine(Scene(environ={}, options=options))[0]
    assert (found.state, "1 of 2 visible GPUs" in found.text) == ("warn", True)
    assert found.fix.startswith("--procs-per-node 2")


def test_the_short_form_is_silent_where_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examine, "BRIEF", {"a": lambda scene: [ok("a", "x")]})
    assert examine.brief({}, alone()) == ()


def test_the_short_form_tells_what_is_not_ok(tmp_path: Path) -> None:
    found = examine.brief({"HOME": "/nonexistent", "TMPDIR": str(tmp_path)}, alone())
    assert "home" in [finding.name for finding in found]
    assert all(finding.state != "ok" for finding in found)


def test_the_short_form_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for_ever = threading.Event()
    monkeypatch.setattr(examine, "BRIEF", {"places": lambda scene: [str(for_ever.wait())]})
    assert examine.brief({}, alone()) == ()
    for_ever.set()


def test_limits_sum_up_to_less_than_ten_seconds() -> None:
    assert 2 * examine.LIMIT_S < 10
    assert examine.BRIEF_S < 0.5
