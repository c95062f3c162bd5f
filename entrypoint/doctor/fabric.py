"""The fabric check finds fast networks of this machine that NCCL would not use.

The reason may be a missing device file, a missing library or too little locked memory.
"""

from __future__ import annotations

import ctypes
import os
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from entrypoint.doctor import reading
from entrypoint.doctor.context import CheckContext, Finding, fail, ok, warn
from entrypoint.machine import StrPath


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """A kind of network. libraries: what NCCL needs to use it. devices: where its device files lie.

    plugin: whether NCCL needs one, too.
    """

    name: str
    libraries: tuple[str, ...]
    devices: str
    fix: str
    plugin: bool = False


_INFINIBAND_FIX = "install libibverbs1 and ibverbs-providers in the image (the project's image has them)"
# In the image NCCL's own code speaks InfiniBand through libibverbs; EFA and Slingshot need a plugin beside libfabric.
# The beginning of a driver's name -> its kind; the empty one is any other. Device names begin so too, but rdma-core
# gives them others, after the place in the machine: EFA's `rdmap16s27`, mlx5's `rocep1s0`, `ibp1s0`.
FABRICS = {
    "cxi": Fabric(
        name="Slingshot",
        libraries=("libcxi.so.1", "libfabric.so.1"),
        devices="dev/cxi*",
        plugin=True,
        fix="bind the site's libfabric and its NCCL plugin (aws-ofi-nccl) into the container: see launch/fabric",
    ),
    "efa": Fabric(
        name="EFA",
        libraries=("libefa.so.1", "libfabric.so.1"),
        devices="dev/infiniband/uverbs*",
        plugin=True,
        fix="bind libfabric and the NCCL plugin (aws-ofi-nccl) of the host into the container: see launch/fabric",
    ),
    "mlx5": Fabric(
        name="InfiniBand or RoCE",
        libraries=("libibverbs.so.1", "libmlx5.so.1"),
        devices="dev/infiniband/uverbs*",
        fix=_INFINIBAND_FIX,
    ),
    "": Fabric(
        name="InfiniBand or RoCE", libraries=("libibverbs.so.1",), devices="dev/infiniband/uverbs*", fix=_INFINIBAND_FIX
    ),
}
_DEVICE_FIX = "give the container the device files: docker run --device=/dev/infiniband, apptainer without --contain"
_MEMLOCK_FIX = "ulimit -l unlimited (docker run --ulimit memlock=-1; Slurm: PropagateResourceLimitsExcept)"
_MIN_MEMLOCK_BYTES = 64 * 2**20  # what a queue pair and its buffers take at least


def can_load_library(library: str) -> bool:
    """Found out by loading it."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def check(scene: CheckContext) -> list[Finding]:
    """Each kind once."""
    devices = [device for device in reading.list_fabric_devices(scene.root) if device.active]
    if not devices:
        return [ok("fabric", "no InfiniBand, RoCE, EFA or Slingshot device that is up")]
    kinds: dict[str, list[reading.FabricDevice]] = {}
    for device in devices:
        kinds.setdefault(_fabric_key(device), []).append(device)
    return [fabric_finding(FABRICS[kind], those, scene) for kind, those in kinds.items()]


def fabric_finding(
    fabric: Fabric,
    devices: Sequence[reading.FabricDevice],
    scene: CheckContext,
    loads: Callable[[str], bool] = can_load_library,
) -> Finding:
    """Whether these devices, all of this kind, can be used."""
    tell, seen = severity(devices, scene), f"{fabric.name} ({', '.join(device.name for device in devices)})"
    if setting := disabling_setting(devices[0], scene.environ):
        return ok("fabric", f"{seen} is not used, as {setting} says: NCCL goes over TCP")
    if not _has_device_file(scene.root, fabric.devices):
        text = f"{seen} is in this machine, but /{fabric.devices} is not here: NCCL would use TCP, much slower"
        return tell("fabric", text, with_ethernet_fix(devices, _DEVICE_FIX))
    missing = [" or ".join(names) for names in _required_libraries(fabric, scene.environ) if not any(map(loads, names))]
    if missing:
        text = f"{seen} cannot be used: {', '.join(missing)} missing. NCCL would use TCP, much slower"
        return tell("fabric", text, with_ethernet_fix(devices, fabric.fix))
    return memlock_finding(seen, resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], scene, tell)


def severity(devices: Sequence[reading.FabricDevice], scene: CheckContext) -> Callable[[str, str, str], Finding]:
    """Unusable is a failure where ranks of several nodes would meet, and elsewhere a word for later.

    Nor is it one where all carry Ethernet: such cards know RoCE, and many serve as plain network cards.
    """
    return fail if scene.several_nodes and not all(device.ethernet for device in devices) else warn


def disabling_setting(device: reading.FabricDevice, environ: Mapping[str, str]) -> str:
    """The setting by which NCCL is to leave this device alone, `NAME=value`; empty where there is none.

    NCCL_IB_DISABLE is for NCCL's own InfiniBand; a plugin does not read it.
    """
    if environ.get("NCCL_NET", "").lower() == "socket":
        return f"NCCL_NET={environ['NCCL_NET']}"
    off = environ.get("NCCL_IB_DISABLE", "") not in ("", "0") and not FABRICS[_fabric_key(device)].plugin
    return f"NCCL_IB_DISABLE={environ['NCCL_IB_DISABLE']}" if off else ""


def memlock_finding(seen: str, limit: int, scene: CheckContext, tell: Callable[[str, str, str], Finding]) -> Finding:
    """These networks write into memory that must stay where it is. limit: how much of it may be held so, bytes."""
    if limit != resource.RLIM_INFINITY and limit < _MIN_MEMLOCK_BYTES and not reading.can_lock_memory(scene.root):
        text = f"{seen} needs locked memory, and only {limit // 1024} KiB may be locked"
        return tell("fabric", text, _MEMLOCK_FIX)
    return ok("fabric", f"{seen}: device files and libraries are here")


def _required_libraries(fabric: Fabric, environ: Mapping[str, str]) -> list[tuple[str, ...]]:
    """One of each. The plugin comes first: it may know by itself where the others lie, and loads them."""
    return [*([nccl_plugin_files(environ)] if fabric.plugin else []), *((library,) for library in fabric.libraries)]


def nccl_plugin_files(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The files of which NCCL takes one as its plugin. Source: openPluginLib() in NCCL's plugin_open.cc."""
    given = [name.strip() for name in environ.get("NCCL_NET_PLUGIN", "").split(",") if name.strip()]
    whole = [name for name in given if "/" in name or name.endswith(".so")]
    names = [(name,) if name in whole else (name, f"libnccl-net-{name}.so") for name in given]
    return tuple(file for files in names for file in files) or ("libnccl-net.so",)


def _fabric_key(device: reading.FabricDevice) -> str:
    told = device.kind if device.kind in FABRICS else device.driver or device.name
    return next(kind for kind in FABRICS if told.startswith(kind))


def with_ethernet_fix(devices: Sequence[reading.FabricDevice], fix: str) -> str:
    """The fix, and before it another one where it may be that nothing is to be mended."""
    ethernet = "where these are plain network cards: NCCL_NET=Socket (launch/fabric/ethernet.env); for RoCE: "
    return ethernet + fix if all(device.ethernet for device in devices) else fix


def _has_device_file(root: StrPath, pattern: str) -> bool:
    folder, _, name = pattern.rpartition("/")
    try:
        return any(entry.startswith(name.rstrip("*")) for entry in os.listdir(os.path.join(root, folder)))
    except OSError:
        return False
