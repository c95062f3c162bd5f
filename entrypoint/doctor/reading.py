"""These readers get facts for the checks from /proc, /sys, mounts and the installed torch.

What a plan needs is read in machine.py.
"""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from entrypoint.machine import StrPath, cgroup_folders, find_mount

MIB = 2**20
_CGROUP_FILES = {  # what a control group tells -> its file in version 2 and in version 1
    "memory": ("memory.max", "memory.limit_in_bytes"),
    "memory used": ("memory.current", "memory.usage_in_bytes"),
    "tasks": ("pids.max", "pids.max"),
    "tasks used": ("pids.current", "pids.current"),
}
_CAP_IPC_LOCK = 14  # source: linux/capability.h
_UNLIMITED = 2**60  # cgroup 1 writes "no limit" as a number of that size


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricDevice:
    """A device of a fast network: `mlx5_0`, whether one of its ports is up, and its kind (infiniband, cxi).

    driver: the kernel's, empty where it is not told. ethernet: whether all ports that are up carry Ethernet.
    """

    name: str
    active: bool
    kind: str
    driver: str = ""
    ethernet: bool = False


def read_text(root: StrPath, *parts: str) -> str:
    """A file's text; empty where it cannot be read."""
    try:
        return Path(root, *parts).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def free_memory_mib(root: StrPath = "/") -> int | None:
    """What this process may still take: the machine's memory, or less where a control group has less left."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", read_text(root, "proc/meminfo"), re.M)
    left = [int(found[1]) // 1024] if found else []
    for folder in cgroup_folders(root, "memory"):
        limit, used = _read_cgroup_number(folder, "memory"), _read_cgroup_number(folder, "memory used")
        if limit is not None and used is not None:
            left.append(max(0, limit - used + _reclaimable_bytes(folder)) // MIB)
    return min(left, default=None)


def num_free_pids(root: StrPath = "/") -> int | None:
    """How many more processes and threads the control group takes; None where it has no limit."""
    numbers = [
        (_read_cgroup_number(folder, "tasks"), _read_cgroup_number(folder, "tasks used"))
        for folder in cgroup_folders(root, "pids")
    ]
    return min((limit - (used or 0) for limit, used in numbers if limit is not None), default=None)


def filesystem_type(path: Path, root: StrPath = "/") -> str:
    """The kind of file system that holds `path` (nfs4, overlay, ...); `unknown` where no mount says so."""
    return find_mount(path, root)[1]


def host_driver_version(root: StrPath = "/") -> str | None:
    """The NVIDIA kernel driver's version; None without one. Containers see it, whether they see GPUs or not."""
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", read_text(root, "proc/driver/nvidia/version"))
    return found[1] if found else None


def installed_torch_versions(package: Path | None = None) -> tuple[str, str | None] | None:
    """The installed torch's version and the CUDA that it was built for (None: a CPU build), without loading it.

    package: torch's folder, by default the installed one's. None where there is no torch.
    """
    if package is None:
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            return None
        package = Path(spec.origin).parent
    said = read_text(package, "version.py")
    version = re.search(r"^__version__ = '([^']+)'", said, re.M)
    cuda = re.search(r"^cuda\b[^=]*= '([^']+)'", said, re.M)
    return (version[1], cuda[1] if cuda else None) if version else None


def list_fabric_devices(root: StrPath = "/") -> tuple[FabricDevice, ...]:
    """InfiniBand, RoCE, EFA and Slingshot devices, as the kernel lists them."""
    found = []
    for kind in ("infiniband", "cxi"):
        folder = Path(root, "sys/class", kind)
        found += (
            [_read_fabric_device(folder / name, kind) for name in sorted(os.listdir(folder))] if folder.is_dir() else []
        )
    return tuple(found)


def can_lock_memory(root: StrPath = "/") -> bool:
    """Whether this process may keep memory in its place without a limit, as the drivers of these networks ask: with
    CAP_IPC_LOCK, in the first user namespace. Source: can_do_mlock() in the kernel's mm/mlock.c.
    """
    effective = re.search(r"^CapEff:\s+([0-9a-f]+)$", read_text(root, "proc/self/status"), re.M)
    first = read_text(root, "proc/self/uid_map").split() == ["0", "0", str(2**32 - 1)]
    return first and effective is not None and bool(int(effective[1], 16) >> _CAP_IPC_LOCK & 1)


def _read_fabric_device(folder: Path, kind: str) -> FabricDevice:
    ports = sorted(Path(folder, "ports").glob("*"))
    up = [port for port in ports if "ACTIVE" in read_text(port, "state")]
    driver = folder / "device/driver"
    return FabricDevice(
        name=folder.name,
        active=bool(up) or not ports,  # cxi lists no ports there
        kind=kind,
        driver=os.readlink(driver).rpartition("/")[2] if driver.is_symlink() else "",
        ethernet={read_text(port, "link_layer").strip() for port in up} == {"Ethernet"},
    )


def _read_cgroup_number(folder: str, what: str) -> int | None:
    for name in _CGROUP_FILES[what]:
        said = read_text(folder, name).strip()
        if said.isdigit():
            return int(said) if int(said) < _UNLIMITED else None
    return None


def _reclaimable_bytes(folder: str) -> int:
    """Files that are kept in memory while nobody needs it."""
    found = re.search(r"^(?:total_)?inactive_file (\d+)$", read_text(folder, "memory.stat"), re.M)
    return int(found[1]) if found else 0
