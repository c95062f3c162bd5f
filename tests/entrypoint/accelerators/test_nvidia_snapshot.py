"""What is asked of NVML; the GPUs are made up."""

from __future__ import annotations

import pynvml
import pytest
from fake_nvml import FakeGpu, FakeNvml, read_fake

from entrypoint.accelerators import nvidia


def test_driver_and_gpus_become_values() -> None:
    snapshot = read_fake(FakeNvml(FakeGpu(used=2**30, programs=2), cuda=12_080))
    assert (snapshot.driver, snapshot.cuda) == ("580.95.05", (12, 8))
    (gpu,) = snapshot.gpus
    assert (gpu.uuid, gpu.memory_mib, gpu.used_mib, gpu.programs) == ("GPU-made-up-0", 81920, 1024, 2)


def test_nvml_is_closed_again() -> None:
    fake = FakeNvml(FakeGpu())
    nvidia.read_snapshot(nvml=fake)
    assert fake.open == 0


def test_what_a_gpu_cannot_answer_is_left_out() -> None:
    snapshot = read_fake(FakeNvml(FakeGpu(uncorrected=None)))
    assert snapshot.gpus[0].uncorrected is None
    assert snapshot.gpus[0].to_replace is False


def test_idle_is_no_reason_to_worry() -> None:
    snapshot = read_fake(FakeNvml(FakeGpu(reasons=pynvml.nvmlClocksEventReasonGpuIdle)))
    assert snapshot.gpus[0].slowed == ()


@pytest.mark.parametrize("reason", nvidia.SLOWDOWN_REASONS, ids=lambda reason: reason.bit)
def test_each_reason_has_its_words(reason: nvidia.SlowdownReason) -> None:
    snapshot = read_fake(FakeNvml(FakeGpu(reasons=getattr(pynvml, reason.bit))))
    assert snapshot.gpus[0].slowed == tuple(filter(None, [reason.words]))


def test_pairs_without_direct_copies_are_listed() -> None:
    snapshot = read_fake(FakeNvml(FakeGpu(uuid="a"), FakeGpu(uuid="b"), FakeGpu(uuid="c"), apart=True))
    assert snapshot.pairs_without_p2p == ((0, 1), (0, 2), (1, 2))


def test_gpus_that_do_not_answer_are_left_out_and_the_others_keep_their_numbers() -> None:
    class OneLost(FakeNvml):
        def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
            if index == 0:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
            return super().nvmlDeviceGetHandleByIndex(index)

    snapshot = read_fake(OneLost(FakeGpu(uuid="a"), FakeGpu(uuid="b"), FakeGpu(uuid="c"), apart=True))
    assert [(gpu.index, gpu.uuid) for gpu in snapshot.gpus] == [(1, "b"), (2, "c")]
    assert snapshot.pairs_without_p2p == ((1, 2),)


def test_an_older_driver_tells_why_its_clock_is_low_by_another_name() -> None:
    snapshot = read_fake(FakeNvml(FakeGpu(reasons=pynvml.nvmlClocksEventReasonHwSlowdown), old=True))
    assert snapshot.gpus[0].slowed == ("slowed by the hardware",)


def test_without_a_driver_there_is_nothing() -> None:
    class NoDriver(FakeNvml):
        def nvmlInit(self) -> None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    assert nvidia.read_snapshot(nvml=NoDriver()) is None
