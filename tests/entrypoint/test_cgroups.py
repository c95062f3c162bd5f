"""Processors that can be kept busy: those of the affinity, or the time that control groups give."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from entrypoint import machine

V1 = {
    "proc/self/cgroup": "3:cpu,cpuacct:/docker/abc\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000",
    "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
}


def lay(root: Path, files: dict[str, str]) -> Path:
    """Files under `root`."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def time_of(root: Path, quota: str) -> Path:
    """A root whose control group, of version 2, gives so much of each 100 ms."""
    return lay(root, {"proc/self/cgroup": "0::/pod/one\n", "sys/fs/cgroup/pod/cpu.max": f"{quota} 100000"})


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight processors, all of them this process's."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)


@pytest.mark.parametrize(("quota", "worth"), [("150000", 1.5), ("max", None)])
def test_a_quota_of_a_group_around_ours_is_read(tmp_path: Path, quota: str, worth: float | None) -> None:
    assert machine.cores_quota(time_of(tmp_path, quota)) == worth


def test_a_quota_of_version_1_is_read(tmp_path: Path) -> None:
    assert machine.cores_quota(lay(tmp_path, V1)) == 2


def test_without_control_groups_there_is_none(tmp_path: Path) -> None:
    assert machine.cores_quota(tmp_path) is None


@pytest.mark.usefixtures("eight")
@pytest.mark.parametrize(("quota", "cores"), [("400000", 4), ("150000", 2), ("50000", 1), ("1600000", 8), ("max", 8)])
def test_as_many_processors_are_used_as_there_is_time_for(tmp_path: Path, quota: str, cores: int) -> None:
    assert machine.num_usable_cores(time_of(tmp_path, quota)) == cores


@pytest.mark.usefixtures("eight")
def test_a_plan_is_made_for_the_processors_that_there_is_time_for(tmp_path: Path) -> None:
    node = machine.read_machine({}, gpus=False, root=time_of(tmp_path, "400000"))
    assert (node.cores, node.machine_cores) == (4, 4)
