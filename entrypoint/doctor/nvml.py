"""`read_nvml` returns what NVML reports about the driver and each GPU.

GPUs that do not answer are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

from entrypoint.machine import import_pynvml, query

MIB = 2**20
# NVML's reasons for a lowered clock -> in words. Idle GPUs and limits that somebody set are no
# problem.
# Source: NVML API reference, nvmlClocksEventReasons.
SLOWDOWN_REASONS = {
    "nvmlClocksEventReasonHwSlowdown": "slowed by the hardware",
    "nvmlClocksEventReasonHwThermalSlowdown": "too hot (hardware)",
    "nvmlClocksEventReasonSwThermalSlowdown": "too hot (driver)",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "power brake: the node's power supply asks for less",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU.

    Attributes:
        capability: its compute capability, such as (9, 0); None if the driver does not say.
        memory_mib, used_mib: its memory, and how much is used now.
        programs: the number of compute programs that use it.
        uncorrected: memory errors that ECC could not correct since the driver was loaded; None
            without ECC.
        to_replace: rows or pages wait for a reset to be replaced. worn_out: a replacement has
            failed.
        slowed: why its clocks are low now, in words. prohibited: compute programs are refused.
    """

    index: int
    uuid: str
    name: str
    capability: tuple[int, int] | None
    memory_mib: int
    used_mib: int
    programs: int
    uncorrected: int | None
    to_replace: bool
    worn_out: bool
    slowed: tuple[str, ...]
    prohibited: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlSnapshot:
    """NVML's answers about the driver and all GPUs.

    Attributes:
        cuda: the newest version that the driver supports; None if its CUDA library does not answer.
        pairs_without_p2p: pairs of GPU indices without direct copies.
    """

    driver: str
    cuda: tuple[int, int] | None
    gpus: tuple[Gpu, ...]
    pairs_without_p2p: tuple[tuple[int, int], ...]


def read_nvml(nvml: Any = None) -> NvmlSnapshot | None:
    """Read everything from NVML; None without a driver. nvml: the module pynvml, or a fake.

    Raises:
        Failure: NODE if pynvml is not installed.
    """
    nvml = nvml or import_pynvml()
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    try:
        handles = _gpu_handles(nvml)
        version = query(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2, 0)
        return NvmlSnapshot(
            driver=str(query(nvml, nvml.nvmlSystemGetDriverVersion, "unknown")),
            cuda=(version // 1000, version % 1000 // 10) if version else None,
            gpus=tuple(_read_gpu(nvml, index, handle) for index, handle in handles.items()),
            pairs_without_p2p=_pairs_without_peer_access(nvml, handles),
        )
    finally:
        nvml.nvmlShutdown()


def _gpu_handles(nvml: Any) -> dict[int, Any]:
    """Handles by index of the GPUs that answer.

    The plan reports a lost one, and another job's does not matter.
    """
    handles = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = query(nvml, partial(nvml.nvmlDeviceGetHandleByIndex, index), None)
        if handle is not None and query(nvml, partial(nvml.nvmlDeviceGetUUID, handle), None):
            handles[index] = handle
    return handles


def _read_gpu(nvml: Any, index: int, handle: Any) -> Gpu:
    memory = query(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle), None)
    # (corrected, uncorrected, pending, failed)
    rows = query(nvml, lambda: nvml.nvmlDeviceGetRemappedRows(handle), (0, 0, 0, 0))
    prohibited = nvml.NVML_COMPUTEMODE_PROHIBITED
    capability = query(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle), None)
    return Gpu(
        index=index,
        uuid=str(nvml.nvmlDeviceGetUUID(handle)),
        name=str(query(nvml, lambda: nvml.nvmlDeviceGetName(handle), "GPU")),
        capability=tuple(capability) if capability else None,
        memory_mib=memory.total // MIB if memory else 0,
        used_mib=memory.used // MIB if memory else 0,
        programs=len(query(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle), ())),
        uncorrected=_uncorrected_errors(nvml, handle),
        to_replace=bool(rows[2]) or bool(query(nvml, lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle), 0)),
        worn_out=bool(rows[3]),
        slowed=_slowdown_reasons(nvml, handle),
        prohibited=query(nvml, lambda: nvml.nvmlDeviceGetComputeMode(handle), None) == prohibited,
    )


def _uncorrected_errors(nvml: Any, handle: Any) -> int | None:
    error_type, counter = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    errors: int | None = query(nvml, lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, error_type, counter), None)
    return errors


def _slowdown_reasons(nvml: Any, handle: Any) -> tuple[str, ...]:
    bits = query(nvml, lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle), None)
    if bits is None:  # an older driver has an older name for them
        bits = query(nvml, lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle), 0)
    return tuple(words for name, words in SLOWDOWN_REASONS.items() if bits & getattr(nvml, name))


def _pairs_without_peer_access(nvml: Any, handles: Mapping[int, Any]) -> tuple[tuple[int, int], ...]:
    """Pairs that cannot read each other's memory."""
    status_ok = nvml.NVML_P2P_STATUS_OK

    def status(first: Any, second: Any) -> Any:
        return query(nvml, lambda: nvml.nvmlDeviceGetP2PStatus(first, second, nvml.NVML_P2P_CAPS_INDEX_READ), status_ok)

    pairs = combinations(handles.items(), 2)
    return tuple((i, j) for (i, first), (j, second) in pairs if status(first, second) != status_ok)
