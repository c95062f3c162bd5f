"""Made up: NVML as pynvml shows it, for GPUs that this machine does not have."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pynvml

from entrypoint.accelerators import nvidia


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeGpu:
    """A made-up GPU, or an instance of one. None: it does not answer.

    reasons: bits of why its clock is low; rows: of remapped memory, as NVML gives them. energy: millijoules so far;
    power: milliwatts. parts: its MIG instances. minor: the number of its device file. error: NVML's number of what
    happens to whoever asks for it.
    """

    uuid: str = "GPU-made-up-0"
    name: str = "Made-up GPU"
    capability: tuple[int, int] | None = (9, 0)
    total: int = 80 * 2**30
    used: int = 0
    programs: int = 0
    uncorrected: int | None = 0
    rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    reasons: int = 0
    mode: int = pynvml.NVML_COMPUTEMODE_DEFAULT
    busy: int | None = 0
    power: int | None = 70_000
    energy: int | None = None
    temperature: int | None = 30
    parts: tuple[FakeGpu, ...] = ()
    minor: int | None = None
    error: int | None = None


class FakeNvml:
    """Made up. Behind the interface of the module pynvml, whose constants it has; None is what a GPU cannot answer."""

    def __init__(
        self,
        *gpus: FakeGpu,
        driver: str = "580.95.05",
        cuda: int = 13_020,
        apart: bool = False,
        old: bool = False,
    ) -> None:
        """old: a driver that knows the reasons of a low clock by their old name only."""
        self._gpus, self._driver, self._cuda, self._apart = gpus, driver, cuda, apart
        self.old, self.open = old, 0

    def __getattr__(self, name: str) -> object:
        if name.startswith("nvmlDevice"):
            raise AttributeError(f"FakeNvml has no {name}")
        return getattr(pynvml, name)

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self._gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return _reached(self._gpus[index])

    def nvmlSystemGetDriverVersion(self) -> str:
        return self._driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self._cuda

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:
        return gpu.name

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> list[int]:
        return list(_answered(gpu.capability))

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(total=gpu.total, used=gpu.used, free=gpu.total - gpu.used)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[int]:
        return list(range(gpu.programs))

    def nvmlDeviceGetRemappedRows(self, gpu: FakeGpu) -> tuple[int, int, int, int]:
        return gpu.rows

    def nvmlDeviceGetRetiredPagesPendingStatus(self, gpu: FakeGpu) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetTotalEccErrors(self, gpu: FakeGpu, error_type: int, counter: int) -> int:
        if gpu.uncorrected is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return gpu.uncorrected

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: FakeGpu) -> int:
        if self.old:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return gpu.reasons

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: FakeGpu) -> int:
        return gpu.reasons

    def nvmlDeviceGetComputeMode(self, gpu: FakeGpu) -> int:
        return gpu.mode

    def nvmlDeviceGetP2PStatus(self, first: FakeGpu, other: FakeGpu, what: int) -> int:
        return pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED if self._apart else pynvml.NVML_P2P_STATUS_OK

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> SimpleNamespace:
        return SimpleNamespace(gpu=_answered(gpu.busy), memory=0)

    def nvmlDeviceGetPowerUsage(self, gpu: FakeGpu) -> int:
        return _answered(gpu.power)

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGpu) -> int:
        return _answered(gpu.energy)

    def nvmlDeviceGetTemperature(self, gpu: FakeGpu, sensor: int) -> int:
        return _answered(gpu.temperature)

    def nvmlDeviceGetMinorNumber(self, gpu: FakeGpu) -> int:
        return _answered(gpu.minor)

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:
        return _answered(len(gpu.parts) or None)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, index: int) -> FakeGpu:
        return _reached(gpu.parts[index])


def read_fake(nvml: FakeNvml) -> nvidia.Snapshot:
    """What the launcher reads of it."""
    snapshot = nvidia.read_snapshot(nvml=nvml)
    assert snapshot is not None
    return snapshot


def _reached(gpu: FakeGpu) -> FakeGpu:
    if gpu.error is not None:
        raise pynvml.NVMLError(gpu.error)
    return gpu


def _answered(value: int | None) -> int:
    if value is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return value
