"""CUDA is started in a process of its own; its library is a stand-in, which fails as it is told."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import null_gpu
import pytest
from machines import fake_gpus, machine
from processes import python

from entrypoint import ExitCode, Failure
from entrypoint.doctor import gpu, preflight
from entrypoint.doctor.context import CheckContext, Finding
from entrypoint.launchers import detect_allocation
from entrypoint.options import LaunchOptions
from entrypoint.plan import plan_allocation

pytestmark = pytest.mark.skipif(null_gpu.missing() is not None, reason=str(null_gpu.missing()))


def context(environ: dict[str, str], *, gpus: int = 1, device: str = "auto") -> CheckContext:
    """A start of one rank for each of these GPUs."""
    options, here = LaunchOptions(device=device), machine(gpus=fake_gpus(gpus))  # type: ignore[arg-type]
    planned = plan_allocation(detect_allocation({}, options, here), options, here, {})
    return CheckContext(environ={"PATH": os.environ["PATH"], **environ}, options=options, plan=planned)


def check(*, gpus: int = 1, **faults: str) -> list[Finding]:
    return gpu.check_cuda(context(null_gpu.driver_environment(**faults), gpus=gpus))


def test_a_cuda_that_starts_is_ok() -> None:
    assert [(finding.name, finding.state) for finding in check()] == [("cuda", "ok")]


@pytest.mark.parametrize(
    ("error", "code", "fix"),
    [
        ("999", ExitCode.NODE, "modprobe nvidia_uvm"),
        ("802", ExitCode.NODE, "nvidia-fabricmanager"),
        ("803", ExitCode.NODE, "driver/library version mismatch"),
        ("46", ExitCode.NODE, "EXCLUSIVE_PROCESS"),
        ("100", ExitCode.NODE, "CUDA_VISIBLE_DEVICES"),
        ("101", ExitCode.NODE, "/dev/nvidia*"),
        ("3", ExitCode.NODE, "nvidia-fabricmanager"),
        ("304", ExitCode.NODE, "/dev/nvidia-uvm"),
        ("214", ExitCode.NODE, "reset"),
        ("805", ExitCode.NODE, "nvidia-cuda-mps-control"),
        ("35", ExitCode.IMAGE_MISMATCH, "newer driver"),
        ("34", ExitCode.IMAGE_MISMATCH, "lib64/stubs"),
        ("804", ExitCode.IMAGE_MISMATCH, "unset CUDA_COMPAT"),
        ("2", ExitCode.RESOURCE, "ulimit -v"),
        ("777", ExitCode.NODE, "nvidia-smi"),
    ],
)
def test_each_error_of_cuda_has_its_fix(error: str, code: ExitCode, fix: str) -> None:
    with pytest.raises(Failure, match="CUDA does not start") as failed:
        check(CUDA_INIT=error)
    assert (failed.value.code, fix in failed.value.fix) == (code, True)
    assert failed.value.found == f"cuInit returns {error}, error of a stand-in, CUDA_ERROR_OF_A_STAND_IN"


def test_a_cuda_that_crashes_ends_its_own_process_only() -> None:
    with pytest.raises(Failure, match="CUDA does not start") as failed:
        check(CUDA_INIT="crash")
    assert failed.value.found == "cuInit ends its process with signal 6"


def test_fewer_gpus_than_ranks_are_named() -> None:
    with pytest.raises(Failure) as failed:
        check(gpus=2, COUNT="2", CUDA_COUNT="1")
    assert failed.value.found == "number of GPUs that CUDA shows: 1; ranks of this task: 2"


def test_a_library_of_cuda_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"its libcuda\.so\.1 does not work") as failed:
        gpu.check_cuda(context({"LD_LIBRARY_PATH": str(tmp_path)}))
    assert "cannot open shared object file" in str(failed.value.found)


def test_a_library_of_cuda_that_is_empty_is_named(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").touch()
    with pytest.raises(Failure, match=r"its libcuda\.so\.1 does not work") as failed:
        gpu.check_cuda(context({"LD_LIBRARY_PATH": str(tmp_path)}))
    assert "file too short" in str(failed.value.found)


def test_on_the_cpu_nobody_starts_cuda() -> None:
    assert gpu.check_cuda(context(null_gpu.driver_environment(CUDA_INIT="999"), device="cpu")) == []


def test_the_short_form_refuses_with_the_code_of_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    here = context(null_gpu.driver_environment(CUDA_INIT="804"))
    monkeypatch.setattr(preflight, "preflight_checks", lambda scene: {"cuda": gpu.check_cuda})
    monkeypatch.setattr(preflight, "GPU_PREFLIGHT_TIMEOUT_S", 60.0)
    monkeypatch.setattr(preflight, "PREFLIGHT_TIMEOUT_S", 60.0)
    assert here.plan is not None
    with pytest.raises(Failure, match="CUDA does not start") as refused:
        preflight.run_preflight(here.plan, here.environ, workers=None)
    assert refused.value.code == ExitCode.IMAGE_MISMATCH


def doctor(folder: Path, *options: str, **variables: str) -> tuple[int, dict[str, str], list[str]]:
    """The exit code of the command, the finding `cuda`, and all names."""
    environ = null_gpu.driver_environment() | variables | {"HOME": str(folder)}
    done = python("-m", "entrypoint", "doctor", "--json", *options, environ=environ, cwd=folder)
    findings = json.loads(done.stdout)["findings"]
    (cuda,) = [finding for finding in findings if finding["name"] == "cuda"]
    return done.returncode, cuda, [finding["name"] for finding in findings]


def test_the_command_asks_cuda_and_starts_no_ranks_that_could_say_no_more(tmp_path: Path) -> None:
    code, cuda, names = doctor(tmp_path, "--full", NULL_GPU_CUDA_INIT="802")
    assert (code, cuda["state"], "nvidia-fabricmanager" in cuda["fix"]) == (78, "fail", True)
    assert "all-reduce" not in names


def test_the_command_names_a_library_of_cuda_that_is_missing_beside_nvml(tmp_path: Path) -> None:
    libraries = tmp_path / "lib"
    libraries.mkdir()
    shutil.copy(null_gpu.build() / "lib/libnvidia-ml.so.1", libraries)
    code, cuda, _ = doctor(tmp_path, LD_LIBRARY_PATH=str(libraries))
    assert (code, cuda["state"], "libcuda.so.1 does not work" in cuda["text"]) == (78, "fail", True)


@pytest.mark.slow
def test_the_command_does_not_wait_for_a_cuda_that_hangs(tmp_path: Path) -> None:
    code, cuda, _ = doctor(tmp_path, NULL_GPU_CUDA_INIT="hang")
    assert (code, cuda["state"], "cuInit" in cuda["text"]) == (78, "fail", True)
