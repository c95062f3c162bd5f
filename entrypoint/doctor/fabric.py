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
    """A type of network.

    libraries: what NCCL needs to use it. devices: the path of its device files. plugin: whether
    NCCL needs a network plugin too.
    """

    name: str
    libraries: tuple[str, ...]
    devices: str
    fix: str
    plugin: bool = False


_PLUGIN_FIX = "bind the site's libfabric and its NCCL plugin (aws-ofi-nccl) into the container: see launch/fabric"
_INFINIBAND_FIX = "install libibverbs1 and ibverbs-providers in the image (the project's image has them)"
# Prefix of a driver's name -> its network; the empty prefix matches any other driver. In the image
# NCCL itself uses InfiniBand through libibverbs; EFA and Slingshot need a plugin and libfabric. The
# driver decides because rdma-core renames devices: EFA's `rdmap16s27`, mlx5's `rocep1s0`, `ibp1s0`.
FABRICS = {
    "cxi": Fabric(
        name="Slingshot",
        libraries=("libcxi.so.1", "libfabric.so.1"),
        devices="dev/cxi*",
        plugin=True,
        fix=_PLUGIN_FIX,
    ),
    "efa": Fabric(
        name="EFA",
        libraries=("libefa.so.1", "libfabric.so.1"),
        devices="dev/infiniband/uverbs*",
        plugin=True,
        fix=_PLUGIN_FIX,
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
_MIN_MEMLOCK_BYTES = 64 * 2**20  # for a queue pair and its buffers


def can_load_library(library: str) -> bool:
    """Whether the library can be loaded; tried by loading it."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def check(context: CheckContext) -> list[Finding]:
    """One finding for each type of network."""
    devices = [device for device in reading.list_fabric_devices(context.root) if device.active]
    if not devices:
        return [ok("fabric", "no InfiniBand, RoCE, EFA or Slingshot device that is up")]
    by_fabric: dict[str, list[reading.FabricDevice]] = {}
    for device in devices:
        by_fabric.setdefault(_fabric_key(device), []).append(device)
    return [fabric_finding(FABRICS[key], group, context) for key, group in by_fabric.items()]


def fabric_finding(
    fabric: Fabric,
    devices: Sequence[reading.FabricDevice],
    context: CheckContext,
    can_load: Callable[[str], bool] = can_load_library,
) -> Finding:
    """Whether NCCL can use these devices, which are all of this type."""
    make_finding, description = (
        severity(devices, context),
        f"{fabric.name} ({', '.join(device.name for device in devices)})",
    )
    if setting := disabling_setting(devices[0], context.environ):
        return ok("fabric", f"{description} is not used, as {setting} says: NCCL goes over TCP")
    if not _has_device_file(context.root, fabric.devices):
        text = f"{description} is in this machine, but /{fabric.devices} is not here: NCCL would use TCP, much slower"
        return make_finding("fabric", text, with_ethernet_fix(devices, _DEVICE_FIX))
    missing = [
        " or ".join(names) for names in _required_libraries(fabric, context.environ) if not any(map(can_load, names))
    ]
    if missing:
        text = f"{description} cannot be used: {', '.join(missing)} missing. NCCL would use TCP, much slower"
        return make_finding("fabric", text, with_ethernet_fix(devices, fabric.fix))
    return memlock_finding(description, resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], context, make_finding)


def severity(devices: Sequence[reading.FabricDevice], context: CheckContext) -> Callable[[str, str, str], Finding]:
    """The severity of an unusable network: `fail` for a plan of several nodes, otherwise `warn`.

    It is also `warn` if all devices carry Ethernet: they support RoCE, and many are used as plain
    network cards.
    """
    return fail if context.several_nodes and not all(device.ethernet for device in devices) else warn


def disabling_setting(device: reading.FabricDevice, environ: Mapping[str, str]) -> str:
    """The setting, as `NAME=value`, that keeps NCCL from using this device; empty without one.

    NCCL_IB_DISABLE disables NCCL's own InfiniBand code; a plugin does not read it.
    """
    if environ.get("NCCL_NET", "").lower() == "socket":
        return f"NCCL_NET={environ['NCCL_NET']}"
    off = environ.get("NCCL_IB_DISABLE", "") not in ("", "0") and not FABRICS[_fabric_key(device)].plugin
    return f"NCCL_IB_DISABLE={environ['NCCL_IB_DISABLE']}" if off else ""


def memlock_finding(
    description: str, limit: int, context: CheckContext, make_finding: Callable[[str, str, str], Finding]
) -> Finding:
    """Whether enough memory may be locked for RDMA. limit: RLIMIT_MEMLOCK in bytes."""
    if limit != resource.RLIM_INFINITY and limit < _MIN_MEMLOCK_BYTES and not reading.can_lock_memory(context.root):
        text = f"{description} needs locked memory, and only {limit // 1024} KiB may be locked"
        return make_finding("fabric", text, _MEMLOCK_FIX)
    return ok("fabric", f"{description}: device files and libraries are here")


def _required_libraries(fabric: Fabric, environ: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Alternatives for each library.

    The plugin is first, because loading it may load the others.
    """
    return [*([nccl_plugin_files(environ)] if fabric.plugin else []), *((library,) for library in fabric.libraries)]


def nccl_plugin_files(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The file names under which NCCL looks for its plugin.

    Source: OpenPluginLib() in plugin_open.cc.
    """
    plugins = [name.strip() for name in environ.get("NCCL_NET_PLUGIN", "").split(",") if name.strip()]
    file_names = [name for name in plugins if "/" in name or name.endswith(".so")]
    alternatives = [(name,) if name in file_names else (name, f"libnccl-net-{name}.so") for name in plugins]
    return tuple(file for files in alternatives for file in files) or ("libnccl-net.so",)


def _fabric_key(device: reading.FabricDevice) -> str:
    driver = device.device_class if device.device_class in FABRICS else device.driver or device.name
    return next(prefix for prefix in FABRICS if driver.startswith(prefix))


def with_ethernet_fix(devices: Sequence[reading.FabricDevice], fix: str) -> str:
    """The fix; for Ethernet devices the advice for plain network cards comes first."""
    ethernet = "where these are plain network cards: NCCL_NET=Socket (launch/fabric/ethernet.env); for RoCE: "
    return ethernet + fix if all(device.ethernet for device in devices) else fix


def _has_device_file(root: StrPath, pattern: str) -> bool:
    folder, _, name = pattern.rpartition("/")
    try:
        return any(entry.startswith(name.rstrip("*")) for entry in os.listdir(os.path.join(root, folder)))
    except OSError:
        return False
