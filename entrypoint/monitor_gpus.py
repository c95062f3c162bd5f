"""A GpuMeter turns NVML's readings of a rank's GPU into sums, peaks and latest values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from entrypoint.gauges import GPU_FIELDS
from entrypoint.machine import visible_gpus

# Why a clock is lower than it could be: of each kind NVML's bits. Idle, and clocks that somebody set, are no trouble.
# Source: NVML API reference, nvmlClocksEventReasons.
SLOWDOWN_REASONS: Final[Mapping[str, tuple[str, ...]]] = {
    "hot_s": ("nvmlClocksEventReasonHwThermalSlowdown", "nvmlClocksEventReasonSwThermalSlowdown"),
    "brake_s": ("nvmlClocksEventReasonHwPowerBrakeSlowdown",),
    "slow_s": ("nvmlClocksEventReasonHwSlowdown",),
    "cap_s": ("nvmlClocksEventReasonSwPowerCap",),
}
UNKNOWN_FIGURES: Final = (math.nan,) * len(GPU_FIELDS)
_LATEST_VALUE_FIELDS: Final = (
    "memory_bytes",
    "memory_peak_bytes",
    "memory_total_bytes",
    "temperature_c",
    "temperature_peak_c",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDevice:
    """A GPU, or an instance of MIG. handle: NVML's; board: that of the whole GPU. instance: None for a whole one.

    index: of /dev/nvidia0 and its likes, where NVML tells it: the place in NVML's list is 0 for each of several tasks
    on a host that may use one GPU each.
    """

    uuid: str
    index: int
    instance: int | None
    handle: Any
    board: Any


def list_devices(nvml: Any) -> Iterator[GpuDevice]:
    """Every GPU that answers, each before its MIG instances. Another job's and one that is lost do not."""
    for place in range(nvml.nvmlDeviceGetCount()):
        board, uuid = _open_device(nvml, partial(nvml.nvmlDeviceGetHandleByIndex, place))
        if uuid is None:
            continue
        minor = _query(nvml, partial(nvml.nvmlDeviceGetMinorNumber, board))
        index = place if minor is None else minor
        yield GpuDevice(uuid=uuid, index=index, instance=None, handle=board, board=board)
        for number in range(_query(nvml, partial(nvml.nvmlDeviceGetMaxMigDeviceCount, board)) or 0):
            part, uuid = _open_device(nvml, partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, board, number))
            if uuid is not None:
                yield GpuDevice(uuid=uuid, index=index, instance=number, handle=part, board=board)


def _open_device(nvml: Any, question: Callable[[], Any]) -> tuple[Any, str | None]:
    """The handle that is asked for and the UUID behind it; without the second the first is of no use."""
    handle = _query(nvml, question)
    uuid = None if handle is None else _query(nvml, partial(nvml.nvmlDeviceGetUUID, handle))
    return handle, None if uuid is None else str(uuid)


def select_devices(
    every: Sequence[GpuDevice], wanted: Sequence[str], visible_devices: str | None
) -> tuple[GpuDevice | None, ...]:
    """Those with these UUIDs, as CUDA says them: without NVML's `GPU-` or `MIG-`. None for one that is not there.

    CUDA may name a GPU where it means the one instance of it that a process can use: then CUDA_VISIBLE_DEVICES tells.
    """
    named = {device.uuid.removeprefix("GPU-").removeprefix("MIG-"): device for device in every}
    parts = {device.uuid: device for device in every if device.instance is not None}
    boards = [device for device in every if device.instance is None]
    pairs = [(b.uuid, tuple(p.uuid for p in parts.values() if p.index == b.index)) for b in boards]
    used = {parts[uuid].index: parts[uuid] for uuid in visible_gpus(pairs, visible_devices) if uuid in parts}
    answers = [named.get(name) for name in wanted]
    return tuple(used.get(it.index, it) if it and it.instance is None else it for it in answers)


class GpuMeter:
    """One device."""

    def __init__(self, nvml: Any, device: GpuDevice) -> None:
        self._nvml, self._device = nvml, device
        self._joules: float | None = None
        sums = dict.fromkeys(GPU_FIELDS, 0.0) | dict.fromkeys(_LATEST_VALUE_FIELDS, math.nan)
        instance = math.nan if device.instance is None else float(device.instance)
        self._found = sums | {"index": float(device.index), "instance": instance}

    def look(self, seconds: float) -> tuple[float, ...]:
        """As in gauges.GPU_FIELDS. seconds: since the last look."""
        self._use(seconds)
        self._memory()
        self._energy(seconds)
        self._heat()
        self._clocks(seconds)
        return tuple(self._found[name] for name in GPU_FIELDS)

    def _use(self, seconds: float) -> None:
        """Of an instance NVML does not tell it."""
        if (rates := self._ask("nvmlDeviceGetUtilizationRates")) is not None:
            self._add(busy=rates.gpu * seconds, busy_s=seconds)

    def _memory(self) -> None:
        if (memory := self._ask("nvmlDeviceGetMemoryInfo")) is not None:
            self._keep("memory", "bytes", memory.used)
            self._found["memory_total_bytes"] = float(memory.total)

    def _energy(self, seconds: float) -> None:
        """By the GPU's own counter; by its power now where it has none. Of an instance NVML tells neither."""
        milli, before = self._ask("nvmlDeviceGetTotalEnergyConsumption"), self._joules
        if milli is not None:
            self._joules = milli / 1000
            if before is not None and self._joules >= before:
                self._add(energy_j=self._joules - before, energy_s=seconds)
        elif (watts := self._ask("nvmlDeviceGetPowerUsage")) is not None:
            self._add(energy_j=watts / 1000 * seconds, energy_s=seconds)

    def _heat(self) -> None:
        """That of the whole GPU, of which an instance is a part."""
        nvml = self._nvml
        question = partial(nvml.nvmlDeviceGetTemperature, self._device.board, nvml.NVML_TEMPERATURE_GPU)
        degrees = _query(nvml, question)
        if degrees is not None:
            self._keep("temperature", "c", degrees)

    def _clocks(self, seconds: float) -> None:
        board, nvml = self._device.board, self._nvml
        bits = _query(nvml, partial(nvml.nvmlDeviceGetCurrentClocksEventReasons, board))
        if bits is None:  # its name in drivers before 535
            bits = _query(nvml, partial(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, board))
        if bits is not None:
            self._add(reasons_s=seconds, **{kind: seconds for kind in slowdown_kinds(nvml, bits)})

    def _ask(self, name: str) -> Any:
        return _query(self._nvml, partial(getattr(self._nvml, name), self._device.handle))

    def _add(self, **sums: float) -> None:
        for name, more in sums.items():
            self._found[name] += more

    def _keep(self, name: str, unit: str, value: float) -> None:
        self._found[f"{name}_{unit}"] = value = float(value)
        peak = f"{name}_peak_{unit}"
        self._found[peak] = value if math.isnan(self._found[peak]) else max(value, self._found[peak])


def slowdown_kinds(nvml: Any, bits: int) -> list[str]:
    """Why the clock is low. The hardware's general bit comes with those that say more."""
    told = [kind for kind, names in SLOWDOWN_REASONS.items() if any(bits & getattr(nvml, name) for name in names)]
    return [kind for kind in told if kind != "slow_s" or not {"hot_s", "brake_s"} & {*told}]


def _query(nvml: Any, question: Callable[[], Any]) -> Any:
    """The answer; None where this GPU or driver has none."""
    try:
        return question()
    except (nvml.NVMLError, nvml.NVMLLibraryMismatchError):  # the second: a driver that is older than pynvml's names
        return None
