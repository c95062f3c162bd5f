"""Cores, memory, file systems and the job are read from trees such as /proc and /sys."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from entrypoint import fabrics, machine


def test_a_job_that_a_parent_is_in_is_seen_through_a_cleaned_environment() -> None:
    code = "import os; from entrypoint.machine import slurm_job_of_parents as job; "
    code += "print(job(os.getppid())['SLURM_JOB_ID'])"
    shell = ["sh", "-c", f'env -u SLURM_JOB_ID "{sys.executable}" -c "{code}"; true']
    done = subprocess.run(
        shell, env={**os.environ, "SLURM_JOB_ID": "77"}, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "77"


def test_a_parent_whose_environment_cannot_be_read_ends_the_search(tmp_path: Path) -> None:
    assert machine.slurm_job_of_parents(4242, proc=tmp_path) == {}


def test_a_program_name_with_parentheses_does_not_hide_the_parent(tmp_path: Path) -> None:
    for pid, environ, parent in ((9, b"A=1\0", 8), (8, b"SLURM_JOB_ID=5\0SLURM_NTASKS=4\0X=1\0", 1)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "environ").write_bytes(environ)
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (a) b (c) S {parent} 0 0")
    assert machine.slurm_job_of_parents(9, proc=tmp_path) == {"SLURM_JOB_ID": "5", "SLURM_NTASKS": "4"}


def test_a_job_is_known_by_slurmstepds_title_where_no_environment_can_be_read(tmp_path: Path) -> None:
    (tmp_path / "9").mkdir()
    (tmp_path / "9" / "cmdline").write_bytes(b"slurmstepd: [4.batch]\0")
    assert machine.slurm_job_of_parents(9, proc=tmp_path) == {"SLURM_JOB_ID": "4", "SLURM_STEP_ID": "batch"}


GROUPS = {
    "v1": "4:pids:/slurm/uid_1001/job_77/step_0/task_1\n3:cpu:/\n0::/\n",
    "v2": "0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_1\n",
}


@pytest.mark.parametrize("version", GROUPS)
def test_a_job_is_known_by_the_control_group_where_no_parent_can_be_seen(tmp_path: Path, version: str) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(GROUPS[version])
    assert machine.slurm_job_of_parents(1, proc=tmp_path) == {"SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize("group", ["slurmstepd.scope/job_77/step_extern/user/task_special", "user.slice/session-1"])
def test_who_comes_to_a_node_by_ssh_is_no_task_of_a_job(tmp_path: Path, group: str) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text(f"0::/system.slice/{group}\n")
    assert machine.slurm_job_of_parents(1, proc=tmp_path) == {}


def test_the_machine_tells_its_own_name_not_the_shells() -> None:
    assert machine.read_machine({"HOSTNAME": "elsewhere"}).hostname == socket.gethostname().split(".")[0]


V1 = "4:memory:/job\n9:name=systemd:/job\n0::/job\n"


@pytest.mark.parametrize(
    ("cgroups", "file", "text"),
    [
        pytest.param(V1, "memory/job/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", id="v1"),
        pytest.param(V1, "memory/memory.oom_control", "under_oom 0\noom_kill 3\n", id="v1 in a container"),
        pytest.param("0::/job\n", "job/memory.events", "oom 5\noom_kill 3\noom_group_kill 1\n", id="v2"),
        pytest.param("0::/\n", "memory.events", "oom 5\noom_kill 3\n", id="v2 in a container"),
    ],
)
def test_kills_for_want_of_memory_are_counted(tmp_path: Path, cgroups: str, file: str, text: str) -> None:
    for name, content in (("proc/self/cgroup", cgroups), (f"sys/fs/cgroup/{file}", text)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert machine.count_oom_kills(tmp_path) == 3


@pytest.mark.parametrize("cgroups", [V1, "", "what is this"])
def test_a_machine_that_does_not_count_has_none(tmp_path: Path, cgroups: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroups)
    assert machine.count_oom_kills(tmp_path) == 0


@pytest.mark.parametrize(
    ("siblings", "core_ids", "threads"),
    [("00000000,00000011\n", {0, 1}, 2), ("00000011\n", {0, 4}, 1), ("00000001\n", {0, 1}, 1), ("", {0}, 1)],
    ids=["one thread of each core", "both threads", "no hyperthreads", "not said"],
)
def test_a_process_knows_how_many_threads_its_cores_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, siblings: str, core_ids: set[int], threads: int
) -> None:
    file = tmp_path / "sys/devices/system/cpu/cpu0/topology/thread_siblings"
    file.parent.mkdir(parents=True)
    file.write_text(siblings)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: core_ids)
    assert machine.read_machine({}, gpus=False, root=tmp_path).threads_per_core == threads


QUOTA_OF_VERSION_1 = {
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
    assert machine.cores_quota(lay(tmp_path, QUOTA_OF_VERSION_1)) == 2


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


MEMINFO = "MemTotal: 16777216 kB\nMemAvailable:    8388608 kB\n"


def test_free_memory_is_the_machines_without_a_control_group(tmp_path: Path) -> None:
    assert machine.free_memory_mib(lay(tmp_path, {"proc/meminfo": MEMINFO})) == 8192


def test_a_limit_of_a_group_around_ours_counts(tmp_path: Path) -> None:
    lay(tmp_path, {"proc/meminfo": MEMINFO, "proc/self/cgroup": "0::/job/step\n"})
    lay(tmp_path, {"sys/fs/cgroup/job/memory.max": "1073741824", "sys/fs/cgroup/job/memory.current": "536870912"})
    lay(tmp_path, {"sys/fs/cgroup/job/step/memory.max": "max", "sys/fs/cgroup/job/step/memory.current": "1"})
    assert machine.free_memory_mib(tmp_path) == 512


def test_files_kept_in_memory_can_be_taken_back(tmp_path: Path) -> None:
    lay(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.stat": "anon 1\ninactive_file 104857600\n"})
    lay(tmp_path, {"sys/fs/cgroup/memory.max": "209715200", "sys/fs/cgroup/memory.current": "209715200"})
    assert machine.free_memory_mib(tmp_path) == 100


def test_a_limit_of_version_1_is_read(tmp_path: Path) -> None:
    lay(tmp_path, {"proc/self/cgroup": "4:memory:/docker/abc\n"})
    lay(tmp_path, {"sys/fs/cgroup/memory/memory.limit_in_bytes": "209715200"})
    lay(tmp_path, {"sys/fs/cgroup/memory/memory.usage_in_bytes": "104857600"})
    assert machine.free_memory_mib(tmp_path) == 100


def test_tasks_left_are_the_limit_less_those_there(tmp_path: Path) -> None:
    lay(tmp_path, {"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/pids.max": "100"})
    assert machine.num_free_pids(lay(tmp_path, {"sys/fs/cgroup/a/pids.current": "30"})) == 70


def test_the_innermost_mount_names_the_file_system(tmp_path: Path) -> None:
    mounts = "overlay / overlay rw 0 0\nserver:/x /data nfs4 rw 0 0\ntmpfs /database tmpfs rw 0 0\n"
    lay(tmp_path, {"proc/self/mounts": mounts})
    kinds = [machine.filesystem_type(Path(folder), tmp_path) for folder in ("/data/runs", "/database", "/home")]
    assert kinds == ["nfs4", "tmpfs", "overlay"]


def test_a_fabric_is_up_where_one_of_its_ports_is(tmp_path: Path) -> None:
    lay(tmp_path, {"sys/class/infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n"})
    lay(tmp_path, {"sys/class/infiniband/mlx5_1/ports/1/state": "1: DOWN\n"})
    os.makedirs(tmp_path / "sys/class/cxi/cxi0")
    names = [(device.name, device.fabric.name) for device in fabrics.list_active_devices(tmp_path)]
    assert names == [("mlx5_0", "InfiniBand or RoCE"), ("cxi0", "Slingshot")]


def test_a_machine_that_tells_nothing_has_no_limits(tmp_path: Path) -> None:
    assert machine.free_memory_mib(tmp_path) is machine.num_free_pids(tmp_path) is None
    assert (machine.filesystem_type(tmp_path, tmp_path), fabrics.list_active_devices(tmp_path)) == ("unknown", [])
