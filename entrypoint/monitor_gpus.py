"""A GpuMeter turns NVML's readings of a rank's GPU into sums, peaks and latest values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from entrypoint.gauges import GPU_FIELDS
from entrypoint.machine import query, visible_gpus

# NVML's bits for each reason why a clock is lowered. Idle GPUs and clocks that somebody set are no
# problem.
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
    """A GPU, or a MIG instance.

    handle: NVML's. board: the handle of the full GPU. instance: None for a full GPU. index: the
    number in /dev/nvidia0 if NVML tells it. The position in NVML's list would not do: it is 0 for
    each of several tasks on a host that may use one GPU each.
    """

    uuid: str
    index: int
    instance: int | None
    handle: Any
    board: Any


def list_devices(nvml: Any) -> Iterator[GpuDevice]:
    """Every GPU that answers, each before its MIG instances.

    A lost GPU or one of another job does not answer.
    """
    for position in range(nvml.nvmlDeviceGetCount()):
        board, uuid = _open_device(nvml, partial(nvml.nvmlDeviceGetHandleByIndex, position))
        if uuid is None:
            continue
        minor = query(nvml, partial(nvml.nvmlDeviceGetMinorNumber, board))
        index = position if minor is None else minor
        yield GpuDevice(uuid=uuid, index=index, instance=None, handle=board, board=board)
        for instance in range(query(nvml, partial(nvml.nvmlDeviceGetMaxMigDeviceCount, board)) or 0):
            mig, uuid = _open_device(nvml, partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, board, instance))
            if uuid is not None:
                yield GpuDevice(uuid=uuid, index=index, instance=instance, handle=mig, board=board)


def _open_device(nvml: Any, question: Callable[[], Any]) -> tuple[Any, str | None]:
    """The handle that `question` returns and its UUID; without a UUID the handle is useless."""
    handle = query(nvml, question)
    uuid = None if handle is None else query(nvml, partial(nvml.nvmlDeviceGetUUID, handle))
    return handle, None if uuid is None else str(uuid)


def select_devices(
    devices: Sequence[GpuDevice], uuids: Sequence[str], visible_devices: str | None
) -> tuple[GpuDevice | None, ...]:
    """The devices with these UUIDs in CUDA's form, without NVML's `GPU-` or `MIG-`.

    None for a missing one.

    CUDA may name the GPU although the process uses one MIG instance of it; then
    CUDA_VISIBLE_DEVICES decides.
    """
    by_uuid = {device.uuid.removeprefix("GPU-").removeprefix("MIG-"): device for device in devices}
    migs = {device.uuid: device for device in devices if device.instance is not None}
    boards = [device for device in devices if device.instance is None]
    pairs = [(b.uuid, tuple(p.uuid for p in migs.values() if p.index == b.index)) for b in boards]
    used_migs = {migs[uuid].index: migs[uuid] for uuid in visible_gpus(pairs, visible_devices) if uuid in migs}
    selected = [by_uuid.get(uuid) for uuid in uuids]
    return tuple(
        used_migs.get(device.index, device) if device and device.instance is None else device for device in selected
    )


class GpuMeter:
    """Accumulates NVML's readings of one device."""

    def __init__(self, nvml: Any, device: GpuDevice) -> None:
        self._nvml, self._device = nvml, device
        self._joules: float | None = None
        sums = dict.fromkeys(GPU_FIELDS, 0.0) | dict.fromkeys(_LATEST_VALUE_FIELDS, math.nan)
        instance = math.nan if device.instance is None else float(device.instance)
        self._figures = sums | {"index": float(device.index), "instance": instance}

    def measure(self, seconds: float) -> tuple[float, ...]:
        """The figures of gauges.GPU_FIELDS. seconds: since the last measurement."""
        self._add_utilization(seconds)
        self._add_memory()
        self._add_energy(seconds)
        self._add_temperature()
        self._add_slowdowns(seconds)
        return tuple(self._figures[name] for name in GPU_FIELDS)

    def _add_utilization(self, seconds: float) -> None:
        """NVML does not report it for a MIG instance."""
        if (rates := self._read("nvmlDeviceGetUtilizationRates")) is not None:
            self._add(busy=rates.gpu * seconds, busy_s=seconds)

    def _add_memory(self) -> None:
        if (memory := self._read("nvmlDeviceGetMemoryInfo")) is not None:
            self._set_with_peak("memory", "bytes", memory.used)
            self._figures["memory_total_bytes"] = float(memory.total)

    def _add_energy(self, seconds: float) -> None:
        """From the GPU's energy counter, or from its power if it has none.

        NVML reports neither for a MIG instance.
        """
        milli, before = self._read("nvmlDeviceGetTotalEnergyConsumption"), self._joules
        if milli is not None:
            self._joules = milli / 1000
            if before is not None and self._joules >= before:
                self._add(energy_j=self._joules - before, energy_s=seconds)
        elif (watts := self._read("nvmlDeviceGetPowerUsage")) is not None:
            self._add(energy_j=watts / 1000 * seconds, energy_s=seconds)

    def _add_temperature(self) -> None:
        """Of the full GPU, also for a MIG instance."""
        nvml = self._nvml
        question = partial(nvml.nvmlDeviceGetTemperature, self._device.board, nvml.NVML_TEMPERATURE_GPU)
        degrees = query(nvml, question)
        if degrees is not None:
            self._set_with_peak("temperature", "c", degrees)

    def _add_slowdowns(self, seconds: float) -> None:
        board, nvml = self._device.board, self._nvml
        bits = query(nvml, partial(nvml.nvmlDeviceGetCurrentClocksEventReasons, board))
        if bits is None:  # a driver before 535 has an older name
            bits = query(nvml, partial(nvml.nvmlDeviceGetCurrentClocksThrottleReasons, board))
        if bits is not None:
            self._add(reasons_s=seconds, **{reason: seconds for reason in slowdown_reasons(nvml, bits)})

    def _read(self, name: str) -> Any:
        return query(self._nvml, partial(getattr(self._nvml, name), self._device.handle))

    def _add(self, **sums: float) -> None:
        for name, amount in sums.items():
            self._figures[name] += amount

    def _set_with_peak(self, name: str, unit: str, value: float) -> None:
        self._figures[f"{name}_{unit}"] = value = float(value)
        peak = f"{name}_peak_{unit}"
        self._figures[peak] = value if math.isnan(self._figures[peak]) else max(value, self._figures[peak])


def slowdown_reasons(nvml: Any, bits: int) -> list[str]:
    """The reasons for a low clock.

    `slow_s` is dropped if a more specific hardware reason is set too.
    """
    reasons = [
        reason for reason, names in SLOWDOWN_REASONS.items() if any(bits & getattr(nvml, name) for name in names)
    ]
    return [reason for reason in reasons if reason != "slow_s" or not {"hot_s", "brake_s"} & {*reasons}]
