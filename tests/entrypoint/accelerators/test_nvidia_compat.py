"""NVIDIA's cuda-compat libraries are used beside older drivers only; drivers and libraries are made up."""

from __future__ import annotations

import sys
from pathlib import Path

import null_gpu
import pytest
from processes import python

from entrypoint import ExitCode, Failure
from entrypoint.accelerators import nvidia

# The CUDA of each driver. Source: NVIDIA, "CUDA Toolkit Release Notes", table 3.
CUDA_BY_DRIVER = {535: (12, 2), 550: (12, 4), 570: (12, 8), 580: (13, 0), 590: (13, 1)}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """What a site's folder looks like."""
    (tmp_path / "compat").mkdir()
    (tmp_path / "compat/libcuda.so.1").touch()
    return str(tmp_path / "compat")


@pytest.mark.parametrize(
    ("driver", "torch_cuda", "used"),
    [
        *((driver, (13, 2), driver < 580) for driver in CUDA_BY_DRIVER),
        *((driver, (12, 8), False) for driver in CUDA_BY_DRIVER),
    ],
)
def test_the_folder_is_used_beside_drivers_of_an_older_major_version(
    folder: str, driver: int, torch_cuda: tuple[int, int], used: bool
) -> None:
    found = nvidia.compat_folder({"CUDA_COMPAT": folder}, CUDA_BY_DRIVER[driver], torch_cuda)
    assert found == (folder if used else None)


def test_a_folder_without_the_library_is_refused_with_how_to_bind_it(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="a folder without libcuda") as caught:
        nvidia.compat_folder({"CUDA_COMPAT": str(tmp_path)}, (12, 2), (13, 2))
    assert (caught.value.code, "--bind" in caught.value.fix) == (ExitCode.NO_INPUT, True)


@pytest.mark.needs_torch
@pytest.mark.skipif(null_gpu.missing() is not None, reason=str(null_gpu.missing()))
@pytest.mark.parametrize(("cuda", "used"), [(11_040, True), (14_000, False)], ids=["an older driver", "a newer driver"])
def test_ranks_find_the_libraries_first_where_they_need_them(
    folder: str, tmp_path: Path, cuda: int, used: bool
) -> None:
    host = null_gpu.driver_environment("999.99", cuda)
    environ = host | {"CUDA_COMPAT": folder, "HOME": str(tmp_path)}
    show_path = (sys.executable, "-c", "import os; print(os.environ['LD_LIBRARY_PATH'])")
    done = python("-m", "entrypoint", "run", "--logs", str(tmp_path), "--", *show_path, environ=environ)
    expected = f"{folder}:{host['LD_LIBRARY_PATH']}" if used else host["LD_LIBRARY_PATH"]
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, [expected]), done.stderr
