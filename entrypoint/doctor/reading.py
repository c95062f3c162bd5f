"""Facts for checks, from /proc, /sys, mounts and the installed torch (what a plan needs is read in host.py)."""

from __future__ import annotations

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from entrypoint.cgroups import Place, groups
from entrypoint.host import mount_of

MIB = 2**20
_FILES = {  # what a control group tells -> its file in version 2 and in version 1
    "memory": ("memory.max", "memory.limit_in_bytes"),
    "memory used": ("memory.current", "memory.usage_in_bytes"),
    "tasks": ("pids.max", "pids.max"),
    "tasks used": ("pids.current", "pids.current"),
}
_CAP_IPC_LOCK = 14  # source: linux/capability.h
_UNLIMITED = 2**60  # cgroup 1 writes "no limit" as a number of that size


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device of a fast network: `mlx5_0`, whether one of its ports is up, and its kind (infiniband, cxi).

    driver: the kernel's, empty where it is not told. ethernet: whether all ports that are up carry Ethernet.
    """

    name: str
    active: bool
    kind: str
    driver: str = ""
    ethernet: bool = False


def text(root: Place, *parts: str) -> str:
    """A file's text; empty where it cannot be read."""
    try:
        return Path(root, *parts).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def memory_free_mib(root: Place = "/") -> int | None:
    """What this process may still take: the machine's memory, or less where a control group has less left."""
    found = re.search(r"^MemAvailable:\s+(\d+) kB", text(root, "proc/meminfo"), re.M)
    left = [int(found[1]) // 1024] if found else []
    for folder in groups(root, "memory"):
        limit, used = _number(folder, "memory"), _number(folder, "memory used")
        if limit is not None and used is not None:
            left.append(max(0, limit - used + _reclaimable(folder)) // MIB)
    return min(left, default=None)


def tasks_left(root: Place = "/") -> int | None:
    """How many more processes and threads the control group takes; None where it has no limit."""
    numbers = [(_number(folder, "tasks"), _number(folder, "tasks used")) for folder in groups(root, "pids")]
    return min((limit - (used or 0) for limit, used in numbers if limit is not None), default=None)


def filesystem(path: Path, root: Place = "/") -> str:
    """The kind of file system that holds `path` (nfs4, overlay, ...); `unknown` where no mount says so."""
    return mount_of(path, root)[1]


def driver_of_host(root: Place = "/") -> str | None:
    """The NVIDIA kernel driver's version; None without one. Containers see it, whether they see GPUs or not."""
    found = re.search(r"Kernel Module.*?\s(\d+\.\d+(?:\.\d+)?)\s", text(root, "proc/driver/nvidia/version"))
    return found[1] if found else None


def torch_cuda(package: Path | None = None) -> tuple[str, str | None] | None:
    """The installed torch's version and the CUDA that it was built for (None: a CPU build), without loading it.

    package: torch's folder, by default the installed one's. None where there is no torch.
    """
    if package is None:
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.origin is None:
            return None
        package = Path(spec.origin).parent
    said = text(package, "version.py")
    version = re.search(r"^__version__ = '([^']+)'", said, re.M)
    cuda = re.search(r"^cuda\b[^=]*= '([^']+)'", said, re.M)
    return (version[1], cuda[1] if cuda else None) if version else None


def fabrics(root: Place = "/") -> tuple[Device, ...]:
    """InfiniBand, RoCE, EFA and Slingshot devices, as the kernel lists them."""
    found = []
    for kind in ("infiniband", "cxi"):
        folder = Path(root, "sys/class", kind)
        found += [_device(folder / name, kind) for name in sorted(os.listdir(folder))] if folder.is_dir() else []
    return tuple(found)


def locks_memory(root: Place = "/") -> bool:
    """Whether this process may keep memory in its place without a limit, as the drivers of these networks ask: with
    CAP_IPC_LOCK, in the first user namespace. Source: can_do_mlock() in the kernel's mm/mlock.c.
    """
    effective = re.search(r"^CapEff:\s+([0-9a-f]+)$", text(root, "proc/self/status"), re.M)
    first = text(root, "proc/self/uid_map").split() == ["0", "0", str(2**32 - 1)]
    return first and effective is not None and bool(int(effective[1], 16) >> _CAP_IPC_LOCK & 1)


def _device(folder: Path, kind: str) -> Device:
    ports = sorted(Path(folder, "ports").glob("*"))
    up = [port for port in ports if "ACTIVE" in text(port, "state")]
    driver = folder / "device/driver"
    return Device(
        name=folder.name,
        active=bool(up) or not ports,  # cxi lists no ports there
        kind=kind,
        driver=os.readlink(driver).rpartition("/")[2] if driver.is_symlink() else "",
        ethernet={text(port, "link_layer").strip() for port in up} == {"Ethernet"},
    )


def _number(folder: str, what: str) -> int | None:
    for name in _FILES[what]:
        said = text(folder, name).strip()
        if said.isdigit():
            return int(said) if int(said) < _UNLIMITED else None
    return None


def _reclaimable(folder: str) -> int:
    """Files that are kept in memory while nobody needs it."""
    found = re.search(r"^(?:total_)?inactive_file (\d+)$", text(folder, "memory.stat"), re.M)
    return int(found[1]) if found else 0
