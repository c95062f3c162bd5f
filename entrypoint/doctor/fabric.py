"""The fabric check finds fast networks of this machine that NCCL would not use.

The reason may be a missing device file, a missing library or too little locked memory.
"""

from __future__ import annotations

import ctypes
import resource
from collections.abc import Callable, Sequence
from pathlib import Path

from entrypoint import engines, fabrics
from entrypoint.doctor.context import CheckContext, Finding, fail, ok, warn
from entrypoint.fabrics import Fabric, FabricDevice
from entrypoint.machine import can_lock_memory

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
    by_fabric: dict[Fabric, list[FabricDevice]] = {}
    for device in fabrics.list_active_devices(context.root):
        by_fabric.setdefault(device.fabric, []).append(device)
    findings = [fabric_finding(devices, context) for devices in by_fabric.values()]
    names = dict.fromkeys(fabric.name for fabric in fabrics.FABRICS)
    return findings or [ok("fabric", f"no device of {' or '.join(names)} that is up")]


def fabric_finding(
    devices: Sequence[FabricDevice], context: CheckContext, can_load: Callable[[str], bool] = can_load_library
) -> Finding:
    """Whether NCCL can use these devices, which are all of one type."""
    make_finding, fabric = severity(devices, context), devices[0].fabric
    description = f"{fabric.name} ({', '.join(device.name for device in devices)})"
    if setting := fabrics.disabling_setting(devices[0], context.environ):
        return ok("fabric", f"{description} is not used, as {setting} says: NCCL goes over TCP")
    if not any(Path(context.root).glob(fabric.devices)):
        text = f"{description} is in this machine, but /{fabric.devices} is not here: NCCL would use TCP, much slower"
        fix = f"give the container the device files: {engines.fix('devices', ', ')}"
        return make_finding("fabric", text, fabrics.with_ethernet_fix(devices, fix))
    libraries = fabrics.required_libraries(fabric, context.environ)
    if missing := [" or ".join(names) for names in libraries if not any(map(can_load, names))]:
        text = f"{description} cannot be used: {', '.join(missing)} missing. NCCL would use TCP, much slower"
        return make_finding("fabric", text, fabrics.with_ethernet_fix(devices, fabric.fix))
    return memlock_finding(description, resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], context, make_finding)


def severity(devices: Sequence[FabricDevice], context: CheckContext) -> Callable[[str, str, str], Finding]:
    """The severity of an unusable network: `fail` for a plan of several nodes, otherwise `warn`.

    It is also `warn` if all devices carry Ethernet: they support RoCE, and many are used as plain
    network cards.
    """
    return fail if context.several_nodes and not all(device.ethernet for device in devices) else warn


def memlock_finding(
    description: str, limit: int, context: CheckContext, make_finding: Callable[[str, str, str], Finding]
) -> Finding:
    """Whether enough memory may be locked for RDMA. limit: RLIMIT_MEMLOCK in bytes."""
    if limit != resource.RLIM_INFINITY and limit < _MIN_MEMLOCK_BYTES and not can_lock_memory(context.root):
        text = f"{description} needs locked memory, and only {limit // 1024} KiB may be locked"
        fix = f"ulimit -l unlimited ({engines.fix('locked memory')}; Slurm: PropagateResourceLimitsExcept)"
        return make_finding("fabric", text, fix)
    return ok("fabric", f"{description}: device files and libraries are here")
