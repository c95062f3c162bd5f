"""The driver's CUDA against torch's; drivers are made up."""

from __future__ import annotations

import json
from pathlib import Path

import made_up_driver
import pytest
from fake_nvml import FakeGpu, FakeNvml
from processes import python

from entrypoint.doctor import gpu, nvml
from entrypoint.doctor.context import Finding


def told(cuda: int, torch: tuple[str, str | None] | None) -> Finding:
    (finding,) = gpu.driver_findings(nvml.read_nvml(FakeNvml(FakeGpu(), cuda=cuda)), torch)
    return finding


@pytest.mark.parametrize("cuda", [13_020, 13_000, 14_010], ids=["the same", "older by a minor", "newer"])
def test_a_driver_of_the_same_major_version_or_a_newer_one_is_fine(cuda: int) -> None:
    assert told(cuda, ("2.15.0", "13.2")).state == "ok"


def test_a_driver_that_is_too_old_names_the_one_that_is_wanted() -> None:
    found = told(12_080, ("2.15.0", "13.2"))
    assert found.state == "fail"
    assert "580" in found.fix
    assert "12.8" in found.text
    assert "13.2" in found.text


def test_a_cpu_build_beside_gpus_is_a_failure() -> None:
    found = told(13_020, ("2.15.0+cpu", None))
    assert found.state == "fail"
    assert "CUDA build" in found.fix


def test_a_driver_without_its_cuda_library_is_not_taken_for_an_old_one() -> None:
    found = told(0, ("2.15.0", "13.2"))
    assert (found.state, "libcuda.so.1" in found.fix) == ("warn", True)


def test_gpus_without_torch_are_a_warning() -> None:
    assert told(13_020, None).state == "warn"


def test_without_gpus_there_is_nothing_to_compare() -> None:
    assert gpu.driver_findings(None, ("2.15.0", "13.2")) == []
    assert gpu.driver_findings(nvml.read_nvml(FakeNvml()), ("2.15.0", "13.2")) == []


@pytest.mark.skipif(made_up_driver.missing() is not None, reason=str(made_up_driver.missing()))
@pytest.mark.parametrize(
    ("driver", "cuda", "states", "code"),
    [("470.82.01", 11_040, ["fail"], 78), ("595.10", 13_020, ["ok"], 0)],
    ids=["too old", "new"],
)
def test_a_whole_process_meets_the_made_up_driver(
    tmp_path: Path, driver: str, cuda: int, states: list[str], code: int
) -> None:
    found = made_up_driver.installed(tmp_path, driver=driver, cuda=cuda)
    done = python("-m", "entrypoint", "doctor", "--json", environ=found | {"HOME": str(tmp_path)}, cwd=tmp_path)
    told = [finding for finding in json.loads(done.stdout)["findings"] if finding["name"] == "driver"]
    assert ([finding["state"] for finding in told], done.returncode) == (states, code), done.stdout
    assert f"driver {driver} supports CUDA {cuda // 1000}" in told[0]["text"]
