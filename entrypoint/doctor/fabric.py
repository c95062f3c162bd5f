"""Fast networks that are in this machine and would not be used: no device file, or a library that is missing."""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from entrypoint.doctor import reading
from entrypoint.doctor.findings import Finding, fail, ok, warn
from entrypoint.doctor.scene import Scene
from entrypoint.host import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A kind of network. libraries: what NCCL needs to use it. devices: where its device files lie."""

    name: str
    libraries: tuple[str, ...]
    devices: str
    fix: str


_IB = "install libibverbs1 and ibverbs-providers in the image (the project's image has them)"
# In the image NCCL's own code speaks InfiniBand through libibverbs; EFA and Slingshot need a plugin beside libfabric.
# The beginning of a device's name -> its kind; the empty one is any other. Source: the drivers' names under /sys/class.
FABRICS = {
    "cxi": Fabric(
        name="Slingshot",
        libraries=("libcxi.so.1", "libfabric.so.1", "libnccl-net.so"),
        devices="dev/cxi*",
        fix="bind the site's libfabric and its NCCL plugin (aws-ofi-nccl) into the container: see launch/fabric",
    ),
    "efa": Fabric(
        name="EFA",
        libraries=("libefa.so.1", "libfabric.so.1", "libnccl-net.so"),
        devices="dev/infiniband/uverbs*",
        fix="bind libfabric and the NCCL plugin (aws-ofi-nccl) of the host into the container: see launch/fabric",
    ),
    "mlx5": Fabric(
        name="InfiniBand or RoCE",
        libraries=("libibverbs.so.1", "libmlx5.so.1"),
        devices="dev/infiniband/uverbs*",
        fix=_IB,
    ),
    "": Fabric(name="InfiniBand or RoCE", libraries=("libibverbs.so.1",), devices="dev/infiniband/uverbs*", fix=_IB),
}
_DEVICE_FIX = "give the container the device files: docker run --device=/dev/infiniband, apptainer without --contain"
_LOCKED_LEAST = 64 * 2**20  # what a queue pair and its buffers take at least


def loads(library: str) -> bool:
    """Found out by loading it."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def check(scene: Scene) -> list[Finding]:
    """Each kind once."""
    devices = [device for device in reading.fabrics(scene.root) if device.active]
    if not devices:
        return [ok("fabric", "no InfiniBand, RoCE, EFA or Slingshot device that is up")]
    kinds: dict[str, list[str]] = {}
    for device in devices:
        kinds.setdefault(_kind(device), []).append(device.name)
    return [finding(FABRICS[kind], names, scene) for kind, names in kinds.items()]


def finding(fabric: Fabric, devices: Sequence[str], scene: Scene, loads: Callable[[str], bool] = loads) -> Finding:
    """Unusable is a failure where ranks of several nodes would meet, and elsewhere a word for later."""
    tell = fail if scene.several_nodes else warn
    seen = f"{fabric.name} ({', '.join(devices)})"
    if not _any(scene.root, fabric.devices):
        text = f"{seen} is in this machine, but /{fabric.devices} is not here: NCCL would use TCP, much slower"
        return tell("fabric", text, _DEVICE_FIX)
    missing = [library for library in fabric.libraries if not loads(library)]
    if missing:
        text = f"{seen} cannot be used: {', '.join(missing)} missing. NCCL would use TCP, much slower"
        return tell("fabric", text, fabric.fix)
    return locked(seen, resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], scene)


def locked(seen: str, limit: int, scene: Scene) -> Finding:
    """These networks write into memory that must stay where it is. limit: how much of it may be held so, bytes."""
    if limit != resource.RLIM_INFINITY and limit < _LOCKED_LEAST:
        text = f"{seen} needs locked memory, and only {limit // 1024} KiB may be locked"
        return (fail if scene.several_nodes else warn)(
            "fabric", text, "ulimit -l unlimited (docker run --ulimit memlock=-1; Slurm: PropagateResourceLimitsExcept)"
        )
    return ok("fabric", f"{seen}: device files and libraries are here")


def _kind(device: reading.Device) -> str:
    return next(kind for kind in FABRICS if device.name.startswith(kind))


def _any(root: Place, pattern: str) -> bool:
    folder, _, name = pattern.rpartition("/")
    try:
        return any(entry.startswith(name.rstrip("*")) for entry in os.listdir(os.path.join(root, folder)))
    except OSError:
        return False
