"""Which of NVIDIA's GPUs there are, and which ones a process may use; NVML is made up."""

from __future__ import annotations

import sys

import pynvml
import pytest
from fake_nvml import FakeGpu, FakeNvml

from entrypoint import machine
from entrypoint.accelerators import nvidia
from entrypoint.errors import ExitCode, Failure

PLAIN = (("GPU-aaaa-1", ()), ("GPU-bbbb-2", ()), ("GPU-bbcc-3", ()))
MIG = (("GPU-aaaa-1", ("MIG-1", "MIG-2")), ("GPU-bbbb-2", ()), ("GPU-cccc-3", ("MIG-3",)))


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [
        (None, ["GPU-aaaa-1", "GPU-bbbb-2", "GPU-bbcc-3"]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1", ["GPU-bbbb-2"]),
        ("2,0", ["GPU-bbcc-3", "GPU-aaaa-1"]),
        ("0, 1", ["GPU-aaaa-1", "GPU-bbbb-2"]),
        ("0,7,1", ["GPU-aaaa-1"]),
        ("0,0", ["GPU-aaaa-1"]),
        ("\u00b2", []),
        ("GPU-bbbb-2,0", ["GPU-bbbb-2", "GPU-aaaa-1"]),
        ("GPU-a", ["GPU-aaaa-1"]),
        ("GPU-bb", []),
    ],
)
def test_visible_gpus_follow_cudas_rules(wanted: str | None, seen: list[str]) -> None:
    assert list(nvidia.visible_gpus(PLAIN, wanted)) == seen


def test_a_mig_name_is_found_under_its_gpu() -> None:
    assert nvidia.visible_gpus(MIG, "MIG-2") == ("MIG-2",)


@pytest.mark.parametrize(
    ("wanted", "seen", "idle"),
    [
        (None, "MIG-1", ["MIG-2", "GPU-bbbb-2", "MIG-3"]),
        ("0,1", "MIG-1", ["MIG-2", "GPU-bbbb-2"]),
        ("1,2", "MIG-3", ["GPU-bbbb-2"]),
        ("MIG-2,MIG-1", "MIG-2", ["MIG-1"]),
        ("MIG-3", "MIG-3", []),
        ("1", "GPU-bbbb-2", []),
        ("GPU-bbbb-2,MIG-1", "MIG-1", ["GPU-bbbb-2"]),
    ],
)
def test_beside_an_instance_of_mig_cuda_shows_nothing(
    monkeypatch: pytest.MonkeyPatch, wanted: str | None, seen: str, idle: list[str]
) -> None:
    """Source: NVIDIA's MIG User Guide, CUDA Device Enumeration."""
    monkeypatch.setattr(nvidia, "list_gpus", lambda root: MIG)
    found = machine.read_machine({} if wanted is None else {"CUDA_VISIBLE_DEVICES": wanted})
    assert (found.gpus, list(found.idle)) == ((seen,), idle)


def answers(monkeypatch: pytest.MonkeyPatch, fake: FakeNvml) -> None:
    """What pynvml asks is answered by made-up GPUs."""
    names = ("nvmlInit", "nvmlShutdown", *(name for name in dir(fake) if name.startswith("nvmlDeviceGet")))
    for name in names:
        monkeypatch.setattr(pynvml, name, getattr(fake, name))


def test_a_gpu_that_is_lost_makes_the_node_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, FakeNvml(FakeGpu(uuid="GPU-a"), FakeGpu(error=pynvml.NVML_ERROR_GPU_IS_LOST)))
    with pytest.raises(Failure, match="GPU 1 of this node does not answer") as lost:
        nvidia.list_gpus()
    assert (lost.value.code, "--exclude" in lost.value.fix) == (ExitCode.NODE, True)


def test_a_gpu_of_another_job_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, FakeNvml(FakeGpu(error=pynvml.NVML_ERROR_NO_PERMISSION), FakeGpu(uuid="GPU-a")))
    assert nvidia.list_gpus() == (("GPU-a", ()),)


@pytest.mark.parametrize("error", [pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION])
def test_an_instance_that_is_gone_or_another_jobs_hides_none_behind_it(
    monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    parts = (FakeGpu(error=error), FakeGpu(uuid="MIG-b"), FakeGpu(error=error), FakeGpu(uuid="MIG-d"))
    answers(monkeypatch, FakeNvml(FakeGpu(uuid="GPU-a", parts=parts)))
    assert nvidia.list_gpus() == (("GPU-a", ("MIG-b", "MIG-d")),)


def test_without_the_package_gpus_are_not_counted_but_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(Failure, match="nvidia-ml-py") as missing:
        nvidia.list_gpus()
    assert missing.value.code == ExitCode.NODE
    assert f"{sys.executable} -m pip install nvidia-ml-py" in missing.value.fix
