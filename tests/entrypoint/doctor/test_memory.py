"""Shared memory, memory, open files and threads, with limits that are real where they can be."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from machines import fake_gpus, machine

from entrypoint.doctor import host
from entrypoint.doctor.context import CheckContext
from entrypoint.launchers import detect_allocation
from entrypoint.options import LaunchOptions
from entrypoint.plan import plan_allocation


def under(limit: int, soft: int, code: str) -> str:
    """What `code` prints in a process of its own that has a limit."""

    def lower() -> None:
        resource.setrlimit(limit, (soft, resource.getrlimit(limit)[1]))

    command = [
        sys.executable,
        "-c",
        f"from entrypoint.doctor import host; from entrypoint.doctor.context import CheckContext; {code}",
    ]
    done = subprocess.run(command, preexec_fn=lower, capture_output=True, text=True, timeout=60, check=True, cwd="/")
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("size", "free", "ranks", "state"),
    [(64, 64, 1, "warn"), (64, 64, 2, "fail"), (1, 1, 1, "fail"), (8192, 100, 4, "fail"), (8192, 8192, 8, "ok")],
)
def test_shared_memory_must_hold_what_each_rank_hands_over(size: int, free: int, ranks: int, state: str) -> None:
    finding = host.shared_memory_finding(size, free, ranks)
    assert (finding.state, bool(finding.fix)) == (state, state != "ok")
    assert f"{free} of {size} MiB" in finding.text


def test_a_small_shm_is_seen_where_it_is_mounted(tmp_path: Path) -> None:
    script = (
        'mkdir -p "$0/dev/shm" && mount -t tmpfs -o size=1m none "$0/dev/shm" && exec "$1" -c "'
        "from entrypoint.doctor import context, host; import sys; "
        'print(host.check_shared_memory(context.CheckContext(environ={}, root=sys.argv[1])).state)" "$0"'
    )
    if os.geteuid() != 0:
        pytest.skip("machine: mounting needs root")
    command = ["unshare", "--mount", "sh", "-c", script, str(tmp_path), sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "unshare" in done.stderr:
        pytest.skip(f"machine: {done.stderr.strip()}")
    assert done.stdout.strip() == "fail", done.stderr


def test_without_shm_the_option_is_named(tmp_path: Path) -> None:
    finding = host.check_shared_memory(CheckContext(environ={}, root=tmp_path))
    assert (finding.state, "--ipc=host" in finding.fix) == ("fail", True)


@pytest.mark.parametrize(("free_gib", "ranks", "state"), [(64, 4, "ok"), (8, 4, "warn"), (2, 4, "fail")])
def test_memory_is_shared_out_among_the_ranks(tmp_path: Path, free_gib: int, ranks: int, state: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemAvailable:   {free_gib * 2**20} kB\n")
    finding = host.check_memory(CheckContext(environ={}, options=LaunchOptions(procs_per_node=ranks), root=tmp_path))
    assert finding.state == state
    assert f"{free_gib}.0 GiB" in finding.text


@pytest.mark.parametrize(("soft", "state"), [(64, "fail"), (512, "warn"), (1024, "ok")])
def test_a_low_limit_on_open_files_is_seen(soft: int, state: str) -> None:
    assert under(resource.RLIMIT_NOFILE, soft, "print(host.check_open_files().state)") == state


def test_a_real_limit_on_threads_is_met() -> None:
    if os.geteuid() != 0:
        pytest.skip("machine: another user needs root")
    # The user is changed late: another one may not be able to read this Python.
    code = "import os; os.setuid(54_321); finding = host.check_threads(CheckContext(environ={})); "
    code += "print(finding.state, 'fewer than 32' in finding.text, 'ulimit -u' in finding.fix)"
    assert under(resource.RLIMIT_NPROC, 20, code) == "fail True True"


def test_here_the_threads_of_a_rank_can_be_started() -> None:
    assert host.check_threads(CheckContext(environ={})).state == "ok"


def on(device: str, ranks: int = 1, workers: int | None = None) -> CheckContext:
    """A node of two GPUs with so many ranks on it."""
    here = machine(gpus=fake_gpus(2))
    options = LaunchOptions(device="cuda" if device == "cuda" else "cpu", procs_per_node=ranks)
    planned = plan_allocation(detect_allocation({}, options, here), options, here, {})
    return CheckContext(environ={}, options=options, plan=planned, workers=workers)


@pytest.mark.parametrize(
    ("scene", "looked_at"),
    [
        (on("cpu", 2), False),
        (on("cuda"), False),
        (on("cuda", 2), True),
        (on("cpu", 1, 4), True),
        (on("cpu", 1, 0), False),
    ],
    ids=["cpu", "one gpu", "two gpus", "data workers", "no data workers"],
)
def test_the_short_form_looks_at_shm_where_something_needs_it(scene: CheckContext, looked_at: bool) -> None:
    names = [finding.name for finding in host.memory_and_limits_preflight(scene)]
    assert names == [*(["shared memory"] if looked_at else []), "memory", "open files"]


@pytest.mark.parametrize(("device", "state"), [("cpu", "ok"), ("cuda", "warn")])
def test_without_cuda_a_rank_takes_less_memory(tmp_path: Path, device: str, state: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(f"MemAvailable:   {2 * 2**20} kB\n")
    assert host.check_memory(replace(on(device), root=tmp_path)).state == state
