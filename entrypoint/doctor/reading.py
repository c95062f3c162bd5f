"""The readers get facts for the checks from /proc, /sys, mounts and the installed torch.

The facts that a plan needs are read in machine.py.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from entrypoint.machine import StrPath, cgroup_folders, find_mount

MIB = 2**20
_CGROUP_FILES = {  # value -> its file in cgroup version 2 and in version 1
    "memory": ("memory.max", "memory.limit_in_bytes"),
    "memory used": ("memory.current", "memory.usage_in_bytes"),
    "tasks": ("pids.max", "pids.max"),
    "tasks used": ("pids.current", "pids.current"),
}
_CAP_IPC_LOCK = 14  # source: linux/capability.h
_UNLIMITED = 2**60  # cgroup 1 writes "no limit" as a number of that size


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricDevice:
    """A device of a fast network, such as `mlx5_0`.

    active: one of its ports is up. device_class: its class in /sys (infiniband, cxi). driver: the
    kernel's, empty if unknown. ethernet: all ports that are up carry Ethernet.
    """

    name: str
    active: bool
    device_class: str
    driver: str = ""
    ethernet: bool = False


def read_text(root: StrPath, *parts: str) -> str:
    """A file's text; empty if it cannot be read."""
    try:
        return Path(root, *parts).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def free_memory_mib(root: StrPath = "/") -> int | None:
    """Memory that this process may still use, on this machine and in its control groups."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", read_text(root, "proc/meminfo"), re.M)
    free = [int(match[1]) // 1024] if match else []
    for folder in cgroup_folders(root, "memory"):
        limit, used = _read_cgroup_number(folder, "memory"), _read_cgroup_number(folder, "memory used")
        if limit is not None and used is not None:
            free.append(max(0, limit - used + _reclaimable_bytes(folder)) // MIB)
    return min(free, default=None)


def num_free_pids(root: StrPath = "/") -> int | None:
    """How many more processes and threads the control group allows; None without a limit."""
    numbers = [
        (_read_cgroup_number(folder, "tasks"), _read_cgroup_number(folder, "tasks used"))
        for folder in cgroup_folders(root, "pids")
    ]
    return min((limit - (used or 0) for limit, used in numbers if limit is not None), default=None)


def filesystem_type(path: Path, root: StrPath = "/") -> str:
    """The type of the file system that holds `path` (nfs4, overlay, ...), or `unknown`."""
    return find_mount(path, root)[1]


def list_fabric_devices(root: StrPath = "/") -> tuple[FabricDevice, ...]:
    """InfiniBand, RoCE, EFA and Slingshot devices, as the kernel lists them."""
    devices = []
    for class_name in ("infiniband", "cxi"):
        folder = Path(root, "sys/class", class_name)
        devices += (
            [_read_fabric_device(folder / name, class_name) for name in sorted(os.listdir(folder))]
            if folder.is_dir()
            else []
        )
    return tuple(devices)


def can_lock_memory(root: StrPath = "/") -> bool:
    """Whether this process may lock memory without a limit.

    It needs CAP_IPC_LOCK in the initial user namespace.

    Source: can_do_mlock() in the kernel's mm/mlock.c.
    """
    effective = re.search(r"^CapEff:\s+([0-9a-f]+)$", read_text(root, "proc/self/status"), re.M)
    in_initial_namespace = read_text(root, "proc/self/uid_map").split() == ["0", "0", str(2**32 - 1)]
    return in_initial_namespace and effective is not None and bool(int(effective[1], 16) >> _CAP_IPC_LOCK & 1)


def _read_fabric_device(folder: Path, device_class: str) -> FabricDevice:
    ports = sorted(Path(folder, "ports").glob("*"))
    active_ports = [port for port in ports if "ACTIVE" in read_text(port, "state")]
    driver = folder / "device/driver"
    return FabricDevice(
        name=folder.name,
        active=bool(active_ports) or not ports,  # cxi lists no ports there
        device_class=device_class,
        driver=os.readlink(driver).rpartition("/")[2] if driver.is_symlink() else "",
        ethernet={read_text(port, "link_layer").strip() for port in active_ports} == {"Ethernet"},
    )


def _read_cgroup_number(folder: str, value: str) -> int | None:
    for name in _CGROUP_FILES[value]:
        text = read_text(folder, name).strip()
        if text.isdigit():
            return int(text) if int(text) < _UNLIMITED else None
    return None


def _reclaimable_bytes(folder: str) -> int:
    """Bytes of cached files, which the kernel frees when memory is needed."""
    match = re.search(r"^(?:total_)?inactive_file (\d+)$", read_text(folder, "memory.stat"), re.M)
    return int(match[1]) if match else 0
