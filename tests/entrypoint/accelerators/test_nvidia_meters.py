"""What is asked of NVML from one measure to the next; the GPUs are made up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pynvml
import pytest
from fake_nvml import FakeGpu, FakeNvml

from entrypoint.accelerators import nvidia
from entrypoint.accelerators.nvidia import GPU_FIELDS, SLOWDOWN_REASONS, GpuDevice, GpuMeter, open_gpus, open_meters

INSTANCE = FakeGpu(uuid="MIG-one", total=10 * 2**30, used=2**30, busy=None, power=None, temperature=None)
OTHER = replace(INSTANCE, uuid="MIG-two", used=3 * 2**30)


class Changing(FakeNvml):
    """Made up. One GPU, another one at each measure."""

    def __init__(self, *looks: FakeGpu, old: bool = False) -> None:
        super().__init__(looks[0], old=old)
        self.looks = looks

    def measured(self, seconds: Sequence[float] = (0.0, 2.0, 3.0)) -> dict[str, float]:
        """What came of looks so many seconds after each other."""
        (device,) = open_gpus(self)
        meter = GpuMeter(self, device)
        for passed, gpu in zip(seconds, self.looks, strict=False):
            meter.device = replace(device, handle=gpu, board=gpu)
            figures = meter.measure(passed)
        return dict(zip(GPU_FIELDS, figures, strict=True))


def test_utilisation_counts_for_the_time_since_the_look_before() -> None:
    measured = Changing(FakeGpu(busy=9), FakeGpu(busy=50), FakeGpu(busy=100)).measured()
    assert (measured["busy"], measured["busy_s"]) == (2 * 50 + 3 * 100, 5.0)


def test_memory_and_temperature_are_the_last_and_the_highest() -> None:
    hot = FakeGpu(used=2**34, temperature=80)
    measured = Changing(FakeGpu(), hot, FakeGpu(used=2**33, temperature=60)).measured()
    assert (measured["memory_bytes"], measured["memory_peak_bytes"]) == (2**33, 2**34)
    assert (measured["temperature_c"], measured["temperature_peak_c"]) == (60, 80)


def test_energy_is_the_gpus_own_counter() -> None:
    measured = Changing(*(FakeGpu(energy=milli) for milli in (7_000, 8_000, 9_500))).measured()
    assert (measured["energy_j"], measured["energy_s"]) == (2.5, 5.0)


def test_a_counter_that_begins_anew_takes_nothing_back() -> None:
    measured = Changing(*(FakeGpu(energy=milli) for milli in (7_000, 8_000, 500))).measured()
    assert (measured["energy_j"], measured["energy_s"]) == (1.0, 2.0)


def test_without_a_counter_energy_is_power_by_time() -> None:
    measured = Changing(*[FakeGpu(power=300_000)] * 3).measured()
    assert (measured["energy_j"], measured["energy_s"]) == (1500.0, 5.0)


@pytest.mark.parametrize("old", [False, True], ids=["driver-today", "driver-before-535"])
@pytest.mark.parametrize("reason", SLOWDOWN_REASONS, ids=lambda reason: reason.bit)
def test_each_reason_of_a_low_clock_is_timed(reason: nvidia.SlowdownReason, old: bool) -> None:
    low = FakeGpu(reasons=getattr(pynvml, reason.bit))
    measured = Changing(FakeGpu(), low, FakeGpu(), old=old).measured()
    assert (measured[reason.figure], measured["reasons_s"]) == (2.0, 5.0)


def test_the_general_bit_beside_one_that_says_more_is_no_reason_of_its_own() -> None:
    bits = pynvml.nvmlClocksEventReasonHwSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown
    measured = Changing(*[FakeGpu(reasons=bits)] * 3).measured()
    assert (measured["hot_s"], measured["slow_s"]) == (5.0, 0.0)


def test_an_idle_clock_is_no_trouble() -> None:
    measured = Changing(*[FakeGpu(reasons=pynvml.nvmlClocksEventReasonGpuIdle)] * 3).measured()
    assert {measured[reason.figure] for reason in SLOWDOWN_REASONS} == {0.0}


def test_what_a_gpu_does_not_answer_has_no_time() -> None:
    measured = Changing(*[FakeGpu(busy=None, power=None, temperature=None)] * 3).measured()
    assert (measured["busy_s"], measured["energy_s"]) == (0.0, 0.0)
    assert math.isnan(measured["temperature_c"])


TWO_GPUS = FakeNvml(FakeGpu(uuid="GPU-zero"), FakeGpu(uuid="GPU-parted", parts=(INSTANCE, OTHER)))


def listed(nvml: FakeNvml) -> list[GpuDevice]:
    """Each GPU, and its MIG instances behind it."""
    return [device for gpu in open_gpus(nvml) for device in (gpu, *gpu.migs)]


def test_gpus_and_their_instances_are_listed() -> None:
    assert [(it.uuid, it.index, it.instance) for it in listed(TWO_GPUS)] == [
        ("GPU-zero", 0, None),
        ("GPU-parted", 1, None),
        ("MIG-one", 1, 0),
        ("MIG-two", 1, 1),
    ]


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_GPU_IS_LOST])
def test_a_gpu_or_instance_that_does_not_answer_hides_no_other_one(error: int) -> None:
    silent, parted = FakeGpu(error=error), FakeGpu(uuid="GPU-parted", parts=(FakeGpu(error=error), OTHER))
    gpus = [(it.uuid, it.index, it.instance) for it in listed(FakeNvml(silent, parted, FakeGpu(uuid="GPU-two")))]
    assert gpus == [("GPU-parted", 1, None), ("MIG-two", 1, 1), ("GPU-two", 2, None)]


class Nameless(FakeNvml):
    """Made up. The first GPU is lost between two questions."""

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:
        if gpu.uuid == "GPU-lost":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return gpu.uuid


def test_a_gpu_that_is_lost_before_it_says_its_name_hides_no_other_one() -> None:
    gpus = open_gpus(Nameless(FakeGpu(uuid="GPU-lost"), FakeGpu(uuid="GPU-one")))
    assert [it.uuid for it in gpus] == ["GPU-one"]


def test_a_question_that_the_drivers_library_does_not_know_hides_no_other_answer() -> None:
    class Older(Changing):
        def nvmlDeviceGetTotalEnergyConsumption(self, gpu: FakeGpu) -> int:
            raise pynvml.NVMLLibraryMismatchError("made up: the library is older than the package")

    measured = Older(*[FakeGpu(power=300_000, busy=40)] * 3).measured()
    assert (measured["energy_j"], measured["busy"]) == (1500.0, 200.0)


def test_the_only_gpu_of_a_task_keeps_the_number_that_it_has_on_its_host() -> None:
    assert [it.index for it in open_gpus(FakeNvml(FakeGpu(minor=3)))] == [3]


@pytest.mark.parametrize(
    ("name", "visible", "uuid"),
    [
        ("zero", None, "GPU-zero"),
        ("two", "MIG-two", "MIG-two"),
        ("parted", "MIG-two", "MIG-two"),
        ("parted", None, "MIG-one"),
        ("parted", "GPU-zero", "GPU-parted"),
    ],
)
def test_cudas_name_leads_to_the_device_that_it_computes_on(name: str, visible: str | None, uuid: str) -> None:
    (meter,) = open_meters(TWO_GPUS, [name], visible)
    assert meter is not None
    assert meter.device.uuid == uuid


def test_a_gpu_that_nvml_does_not_show_is_nowhere() -> None:
    assert open_meters(TWO_GPUS, ["gone", "zero"], None)[0] is None


def test_of_an_instance_memory_is_known_and_the_heat_of_its_gpu_but_no_use_and_no_energy() -> None:
    nvml = FakeNvml(FakeGpu(temperature=55, parts=(INSTANCE,)))
    meter = GpuMeter(nvml, listed(nvml)[1])
    meter.measure(0.0)
    measured = dict(zip(GPU_FIELDS, meter.measure(5.0), strict=True))
    assert (measured["memory_bytes"], measured["temperature_c"], measured["instance"]) == (2**30, 55, 0)
    assert (measured["busy_s"], measured["energy_s"]) == (0.0, 0.0)
