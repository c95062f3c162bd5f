"""Facts from trees that look like /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path

from entrypoint import fabrics, machine


def lay(root: Path, **files: str) -> Path:
    """Files under `root`; in a name `__` stands for a slash and `_DOT_` for a dot."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = "MemTotal: 16777216 kB\nMemAvailable:    8388608 kB\n"


def test_free_memory_is_the_machines_without_a_control_group(tmp_path: Path) -> None:
    assert machine.free_memory_mib(lay(tmp_path, proc__meminfo=MEMINFO)) == 8192


def test_a_limit_of_a_group_around_ours_counts(tmp_path: Path) -> None:
    lay(tmp_path, proc__meminfo=MEMINFO, proc__self__cgroup="0::/job/step\n")
    lay(
        tmp_path,
        sys__fs__cgroup__job__memory_DOT_max="1073741824",
        sys__fs__cgroup__job__memory_DOT_current="536870912",
    )
    lay(tmp_path, sys__fs__cgroup__job__step__memory_DOT_max="max", sys__fs__cgroup__job__step__memory_DOT_current="1")
    assert machine.free_memory_mib(tmp_path) == 512


def test_files_kept_in_memory_can_be_taken_back(tmp_path: Path) -> None:
    lay(tmp_path, proc__self__cgroup="0::/\n", sys__fs__cgroup__memory_DOT_stat="anon 1\ninactive_file 104857600\n")
    lay(tmp_path, sys__fs__cgroup__memory_DOT_max="209715200", sys__fs__cgroup__memory_DOT_current="209715200")
    assert machine.free_memory_mib(tmp_path) == 100


def test_a_limit_of_version_1_is_read(tmp_path: Path) -> None:
    lay(tmp_path, proc__self__cgroup="4:memory:/docker/abc\n")
    lay(tmp_path, sys__fs__cgroup__memory__memory_DOT_limit_in_bytes="209715200")
    lay(tmp_path, sys__fs__cgroup__memory__memory_DOT_usage_in_bytes="104857600")
    assert machine.free_memory_mib(tmp_path) == 100


def test_tasks_left_are_the_limit_less_those_there(tmp_path: Path) -> None:
    lay(tmp_path, proc__self__cgroup="0::/a\n", sys__fs__cgroup__a__pids_DOT_max="100")
    assert machine.num_free_pids(lay(tmp_path, sys__fs__cgroup__a__pids_DOT_current="30")) == 70


def test_the_innermost_mount_names_the_file_system(tmp_path: Path) -> None:
    mounts = "overlay / overlay rw 0 0\nserver:/x /data nfs4 rw 0 0\ntmpfs /database tmpfs rw 0 0\n"
    lay(tmp_path, proc__self__mounts=mounts)
    kinds = [machine.filesystem_type(Path(folder), tmp_path) for folder in ("/data/runs", "/database", "/home")]
    assert kinds == ["nfs4", "tmpfs", "overlay"]


def test_a_fabric_is_up_where_one_of_its_ports_is(tmp_path: Path) -> None:
    lay(tmp_path, sys__class__infiniband__mlx5_0__ports__1__state="4: ACTIVE\n")
    lay(tmp_path, sys__class__infiniband__mlx5_1__ports__1__state="1: DOWN\n")
    os.makedirs(tmp_path / "sys/class/cxi/cxi0")
    names = [(device.name, device.fabric.name) for device in fabrics.list_active_devices(tmp_path)]
    assert names == [("mlx5_0", "InfiniBand or RoCE"), ("cxi0", "Slingshot")]


def test_a_machine_that_tells_nothing_has_no_limits(tmp_path: Path) -> None:
    assert machine.free_memory_mib(tmp_path) is machine.num_free_pids(tmp_path) is None
    assert (machine.filesystem_type(tmp_path, tmp_path), fabrics.list_active_devices(tmp_path)) == ("unknown", [])
