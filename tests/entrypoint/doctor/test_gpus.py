"""Each trouble of a GPU, provoked with GPUs that are made up."""

from __future__ import annotations

import pynvml
import pytest
from fake_nvml import FakeGpu, FakeNvml, read_fake

from entrypoint.doctor import gpu as gpus
from entrypoint.doctor.context import CheckContext, Finding
from entrypoint.options import LaunchOptions


def findings_by_name(*made_up: FakeGpu, apart: bool = False) -> dict[str, Finding]:
    snapshot = read_fake(FakeNvml(*made_up, apart=apart))
    return {finding.name: finding for finding in gpus.gpu_findings(snapshot, snapshot.gpus)}


def test_a_sound_gpu_is_listed_with_its_uuid() -> None:
    findings = findings_by_name(FakeGpu())
    assert list(findings) == ["gpus"]
    assert "GPU-made-up-0" in findings["gpus"].text


@pytest.mark.parametrize(
    ("made_up", "name", "state"),
    [
        (FakeGpu(uncorrected=3), "ecc", "fail"),
        (FakeGpu(rows=(0, 1, 0, 1)), "ecc", "fail"),
        (FakeGpu(rows=(0, 1, 1, 0)), "ecc", "warn"),
        (FakeGpu(reasons=pynvml.nvmlClocksEventReasonHwThermalSlowdown), "throttling", "warn"),
        (FakeGpu(used=40 * 2**30, programs=1), "gpu memory", "warn"),
        (FakeGpu(mode=pynvml.NVML_COMPUTEMODE_PROHIBITED), "compute mode", "fail"),
    ],
    ids=["uncorrected errors", "worn out", "waits for a reset", "too hot", "taken", "prohibited"],
)
def test_each_trouble_is_named_with_its_gpu(made_up: FakeGpu, name: str, state: str) -> None:
    finding = findings_by_name(made_up)[name]
    assert finding.state == state
    assert "GPU 0" in finding.text
    assert finding.fix


def test_gpus_that_differ_are_named() -> None:
    finding = findings_by_name(FakeGpu(uuid="a", name="Large"), FakeGpu(uuid="b", name="Small"))["gpu kinds"]
    assert (finding.state, "Large, Small" in finding.text) == ("warn", True)


@pytest.mark.parametrize(("apart", "state"), [(True, "warn"), (False, "ok")])
def test_peer_access_is_told_of_several_gpus(apart: bool, state: str) -> None:
    assert findings_by_name(FakeGpu(uuid="a"), FakeGpu(uuid="b"), apart=apart)["peer access"].state == state


@pytest.mark.parametrize(
    ("name", "count", "driver", "environ", "names"),
    [
        ("NVIDIA GeForce RTX 4090", 2, "535.183.01", {}, ["direct copies"]),
        ("NVIDIA GeForce RTX 4090", 2, "535.183.01", {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"}, []),
        ("NVIDIA GeForce RTX 4090", 2, "550.40.07", {}, []),
        ("NVIDIA GeForce RTX 4090", 1, "535.183.01", {}, []),
        ("NVIDIA GeForce RTX 3090", 2, "535.183.01", {}, []),
    ],
    ids=["an old driver", "turned off", "a newer driver", "one GPU", "older GPUs"],
)
def test_direct_copies_that_do_not_work_are_found_before_nccl_hangs(
    name: str, count: int, driver: str, environ: dict[str, str], names: list[str]
) -> None:
    made_up = [FakeGpu(uuid=f"GPU-{index}", name=name) for index in range(count)]
    snapshot = read_fake(FakeNvml(*made_up, driver=driver))
    assert [finding.name for finding in gpus.rtx_40_findings(snapshot, snapshot.gpus, environ)] == names


def test_only_visible_gpus_are_looked_at() -> None:
    snapshot = read_fake(FakeNvml(FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b")))
    assert [gpu.uuid for gpu in gpus.select_used_gpus(snapshot, "1")] == ["GPU-b"]


def test_an_instance_has_the_trouble_of_its_gpu() -> None:
    parts = (FakeGpu(uuid="MIG-1"), FakeGpu(uuid="MIG-2"))
    snapshot = read_fake(FakeNvml(FakeGpu(uuid="GPU-a"), FakeGpu(uuid="GPU-b", parts=parts)))
    assert [gpu.uuid for gpu in gpus.select_used_gpus(snapshot, "MIG-2")] == ["GPU-b"]


def test_gpus_that_are_all_hidden_are_a_warning() -> None:
    snapshot = read_fake(FakeNvml(FakeGpu()))
    (finding,) = gpus.gpu_findings(snapshot, ())
    assert (finding.state, "CUDA_VISIBLE_DEVICES" in finding.fix) == ("warn", True)


def test_on_the_cpu_nobody_looks_at_gpus() -> None:
    (finding,) = gpus.check(CheckContext(environ={}, options=LaunchOptions(device="cpu")))
    assert (finding.state, "--device cpu" in finding.text) == ("ok", True)
