"""Processors against ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from machines import machine

from entrypoint.doctor import host
from entrypoint.doctor.context import CheckContext
from entrypoint.launchers import detect_allocation
from entrypoint.options import LaunchOptions
from entrypoint.plan import plan_allocation


@pytest.mark.parametrize(
    ("usable", "quota", "ranks", "state"),
    [(8, None, 4, "ok"), (1, None, 1, "warn"), (4, None, 4, "warn"), (8, 2.0, 4, "warn"), (8, 16.0, 4, "ok")],
    ids=["enough", "one core", "none for workers", "a small quota", "a large quota"],
)
def test_each_rank_wants_a_core_and_one_for_its_data(usable: int, quota: float | None, ranks: int, state: str) -> None:
    finding = host.cores_finding(usable, 64, quota, ranks)
    assert (finding.state, "--cpus-per-task" in finding.fix) == (state, state != "ok")


def test_a_quota_below_the_affinity_is_told() -> None:
    assert "with a quota of 1.5" in host.cores_finding(8, 64, 1.5, 4).text


def test_a_quota_that_is_enough_is_told_all_the_same() -> None:
    finding = host.cores_finding(64, 64, 4.0, 1)
    assert (finding.state, "with a quota of 4" in finding.text, "--cpuset-cpus" in finding.fix) == ("warn", True, True)


@pytest.mark.parametrize(("cpu_max", "states"), [("0.5", ["warn"]), ("1.5", [])])
def test_before_a_training_a_quota_is_told_only_where_it_is_too_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu_max: str, states: list[str]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    for name, text in {
        "proc/self/cgroup": "0::/\n",
        "sys/fs/cgroup/cpu.max": f"{float(cpu_max) * 1e5:.0f} 100000",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text)
    options = LaunchOptions(device="cpu")
    planned = plan_allocation(detect_allocation({}, options, machine()), options, machine(), {})
    assert [
        finding.state for finding in host.cores_preflight(CheckContext(environ={}, plan=planned, root=tmp_path))
    ] == states


@pytest.mark.parametrize(("workers", "state"), [(0, "ok"), (1, "ok"), (4, "ok"), (8, "warn")])
def test_data_workers_of_a_known_number_are_counted(workers: int, state: str) -> None:
    finding = host.cores_finding(8, 8, None, 2, workers)
    assert (finding.state, "data.workers" in finding.fix) == (state, state == "warn")


def test_more_ranks_than_cores_are_told_on_the_cpu_too() -> None:
    assert host.cores_finding(1, 8, None, 2, 0).text.endswith("no core of its own for each")


@pytest.mark.parametrize(("workers", "state"), [(None, "ok"), (1000, "warn")])
def test_the_short_form_on_the_cpu_wants_a_core_for_each_rank(workers: int | None, state: str) -> None:
    options = LaunchOptions(device="cpu")
    planned = plan_allocation(detect_allocation({}, options, machine()), options, machine(), {})
    (finding,) = host.cores_preflight(CheckContext(environ={}, plan=planned, workers=workers, root="/nonexistent"))
    assert finding.state == state


@pytest.mark.parametrize(("usable", "ranks"), [(64, 8), (32, 4), (8, 1), (16, 2), (1, 1)])
def test_tasks_that_were_not_bound_apart_share_their_cores(usable: int, ranks: int) -> None:
    environ = {f"OMPI_COMM_WORLD_{name}": "8" for name in ("SIZE", "LOCAL_SIZE")}
    environ |= {f"OMPI_COMM_WORLD_{name}": "3" for name in ("RANK", "LOCAL_RANK")}
    planned = plan_allocation(
        detect_allocation(environ, LaunchOptions(device="cpu"), machine()),
        LaunchOptions(device="cpu"),
        machine(),
        environ,
    )
    assert host.num_ranks_sharing_cores(usable, 64, CheckContext(environ=environ, plan=planned)) == ranks


def test_cores_that_all_tasks_of_a_machine_share_are_told_for_real() -> None:
    tasks = str(2 * (os.cpu_count() or 1))
    environ = {f"OMPI_COMM_WORLD_{name}": tasks for name in ("SIZE", "LOCAL_SIZE")}
    environ |= {f"OMPI_COMM_WORLD_{name}": "0" for name in ("RANK", "LOCAL_RANK")}
    planned = plan_allocation(
        detect_allocation(environ, LaunchOptions(device="cpu"), machine()),
        LaunchOptions(device="cpu"),
        machine(),
        environ,
    )
    (finding,) = host.check_cores(CheckContext(environ=environ, plan=planned, root="/nonexistent"))
    assert (finding.state, "no core of its own" in finding.text) == ("warn", True)


def test_all_on_one_core_is_seen_for_real() -> None:
    code = "from entrypoint.doctor import context, host; print(host.check_cores(context.CheckContext(environ={}))[0])"
    core = min(os.sched_getaffinity(0))
    pinned = f"import os; os.sched_setaffinity(0, [{core}]); {code}"
    done = subprocess.run([sys.executable, "-c", pinned], capture_output=True, text=True, timeout=60, check=True)
    assert "state='warn'" in done.stdout
    assert "text='1 of " in done.stdout
