"""All checks together, on this machine and on those that were captured."""

from __future__ import annotations

from pathlib import Path

import pytest
from machines import captured, machine

from entrypoint.doctor import examine
from entrypoint.doctor.context import CheckContext
from entrypoint.options import LaunchOptions

CPU = LaunchOptions(device="cpu")


def test_the_plan_comes_first_and_all_subjects_follow(tmp_path: Path) -> None:
    findings = examine.run_all_checks(CheckContext(environ={"HOME": str(tmp_path)}, options=CPU, output=tmp_path))
    subjects = list(dict.fromkeys(finding.name for finding in findings))
    assert subjects[:2] == ["plan", "gpus"]
    assert {"shared memory", "memory", "open files", "threads", "cores", "home", "user", "output"} <= set(subjects)
    assert subjects[-4:] == ["network", "fabric", "host python", "variables"]


def test_a_start_that_would_be_refused_is_a_failure_and_the_rest_is_looked_at() -> None:
    findings = examine.run_all_checks(CheckContext(environ=captured("no-srun-two-nodes/batch-0@node01"), options=CPU))
    assert (findings[0].name, findings[0].state, "srun" in findings[0].fix) == ("plan", "fail", True)
    assert len(findings) > 5


def test_a_plans_warning_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    options = LaunchOptions(procs_per_node=1)
    gpus = ("GPU-fake-0", "GPU-fake-1")
    monkeypatch.setattr("entrypoint.plan.read_machine", lambda environ, gpus: machine(gpus=GPUS))
    GPUS = gpus
    first, finding, *_ = examine.run_all_checks(CheckContext(environ={}, options=options))
    assert (first.state, finding.name, finding.state) == ("ok", "plan", "warn")
    assert "1 of 2 visible GPUs" in finding.text
    assert finding.fix.startswith("--procs-per-node 2")


def test_limits_sum_up_to_less_than_ten_seconds() -> None:
    assert 2 * examine.CHECKS_TIMEOUT_S < 10
