"""The driver's CUDA against torch's; drivers are made up."""

from __future__ import annotations

import json
from pathlib import Path

import null_gpu
import pytest
from fake_nvml import FakeGpu, FakeNvml, read_fake
from processes import python

from entrypoint.doctor import gpu
from entrypoint.doctor.context import Finding


def findings(cuda: int, torch: tuple[str, str | None] | None, capability: tuple[int, int] = (9, 0)) -> list[Finding]:
    snapshot = read_fake(FakeNvml(FakeGpu(name="GPU", capability=capability), cuda=cuda))
    return gpu.torch_findings(snapshot, snapshot.gpus, torch)


def driver_finding(cuda: int, torch: tuple[str, str | None] | None) -> Finding:
    (finding,) = findings(cuda, torch)
    return finding


@pytest.mark.parametrize("cuda", [13_020, 13_000, 14_010], ids=["the same", "older by a minor", "newer"])
def test_a_driver_of_the_same_major_version_or_a_newer_one_is_fine(cuda: int) -> None:
    assert driver_finding(cuda, ("2.15.0", "13.2")).state == "ok"


# The CUDA of each driver. Source: NVIDIA, "CUDA Toolkit Release Notes", table 3.
CUDA_BY_DRIVER = {470: 11_040, 535: 12_020, 550: 12_040, 570: 12_080, 580: 13_000, 590: 13_010}
CAPABILITIES = {"V100": (7, 0), "A100": (8, 0), "H100": (9, 0), "B200": (10, 0)}
TORCH_BY_IMAGE = {"13": ("2.15.0+cu132", "13.2"), "12": ("2.10.0+cu128", "12.8")}
RUNS, IMAGE_12, NEWER_DRIVER = "runs", "make image CUDA=12", "driver 525 or newer"
OLD, MIDDLE, NEW = (470,), (535, 550, 570), (580, 590)
OUTCOMES = {
    **{("13", driver, name): NEWER_DRIVER for driver in OLD for name in CAPABILITIES},
    **{("13", driver, name): IMAGE_12 for driver in MIDDLE for name in CAPABILITIES},
    **{("13", driver, name): RUNS for driver in NEW for name in CAPABILITIES},
    **{("13", driver, "V100"): IMAGE_12 for driver in NEW},
    **{("12", driver, name): NEWER_DRIVER for driver in OLD for name in CAPABILITIES},
    **{("12", driver, name): RUNS for driver in (*MIDDLE, *NEW) for name in CAPABILITIES},
}


@pytest.mark.parametrize(("image", "driver", "name"), OUTCOMES)
def test_each_driver_and_gpu_runs_an_image_or_is_shown_the_one_that_runs(image: str, driver: int, name: str) -> None:
    failed = [
        finding
        for finding in findings(CUDA_BY_DRIVER[driver], TORCH_BY_IMAGE[image], CAPABILITIES[name])
        if finding.state == "fail"
    ]
    expected = OUTCOMES[image, driver, name]
    assert [expected in finding.fix for finding in failed] == ([] if expected == RUNS else [True]), failed


def test_a_driver_that_is_too_old_is_named_with_both_versions() -> None:
    text = driver_finding(12_080, TORCH_BY_IMAGE["13"]).text
    assert "supports CUDA 12.8; torch 2.15.0+cu132 was built for CUDA 13.2" in text


def test_a_gpu_without_code_is_named_with_its_compute_capability() -> None:
    (_, finding) = findings(13_000, TORCH_BY_IMAGE["13"], (7, 0))
    assert (finding.name, "GPU (7.0)" in finding.text) == ("architecture", True)


def test_a_gpu_for_which_no_image_has_code_is_not_sent_to_another_driver() -> None:
    (finding,) = findings(11_040, TORCH_BY_IMAGE["12"], (3, 5))
    assert "no image of this project has code for this GPU" in finding.fix


def test_of_a_torch_that_no_image_holds_only_the_driver_is_compared() -> None:
    assert [finding.name for finding in findings(13_000, ("2.99.0", "13.0"), (7, 0))] == ["driver"]


def test_a_cpu_build_beside_gpus_is_a_failure() -> None:
    finding = driver_finding(13_020, ("2.15.0+cpu", None))
    assert finding.state == "fail"
    assert "CUDA build" in finding.fix


def test_a_driver_without_its_cuda_library_is_not_taken_for_an_old_one() -> None:
    finding = driver_finding(0, ("2.15.0", "13.2"))
    assert (finding.state, "libcuda.so.1" in finding.fix) == ("warn", True)


def test_gpus_without_torch_are_a_warning() -> None:
    assert driver_finding(13_020, None).state == "warn"


@pytest.mark.needs_torch
@pytest.mark.skipif(null_gpu.missing() is not None, reason=str(null_gpu.missing()))
@pytest.mark.parametrize(
    ("driver", "cuda", "states", "code"),
    [("470.82.01", 11_040, ["fail"], 78), ("595.10", 13_020, ["ok"], 0)],
    ids=["too old", "new"],
)
def test_a_whole_process_meets_the_driver(tmp_path: Path, driver: str, cuda: int, states: list[str], code: int) -> None:
    variables = null_gpu.driver_environment(driver, cuda)
    done = python("-m", "entrypoint", "doctor", "--json", environ=variables | {"HOME": str(tmp_path)}, cwd=tmp_path)
    findings = [finding for finding in json.loads(done.stdout)["findings"] if finding["name"] == "driver"]
    assert ([finding["state"] for finding in findings], done.returncode) == (states, code), done.stdout
    assert f"driver {driver} supports CUDA {cuda // 1000}" in findings[0]["text"]
