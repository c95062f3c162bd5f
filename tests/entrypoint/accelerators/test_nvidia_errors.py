"""A driver that does not answer is named with its fix; only a machine without one computes on the CPU unasked."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import null_gpu
import pytest
from processes import python

from entrypoint import ExitCode, Failure, machine
from entrypoint.accelerators import nvidia

NEEDS_STAND_INS = pytest.mark.skipif(null_gpu.missing() is not None, reason=str(null_gpu.missing()))
NOT_LOADED, NO_LIBRARY = nvidia.NVML_DRIVER_NOT_LOADED, nvidia.NVML_LIBRARY_NOT_FOUND
VERSION, NODE = "proc/driver/nvidia/version", "dev/nvidia0"
GPU = {"sys/bus/pci/devices/0000:17:00.0/modalias": "pci:v000010DEd00002330sv000010DEsd000016C1bc03sc02i00\n"}
SOUND_CARD = {"sys/bus/pci/devices/0000:17:00.1/modalias": "pci:v000010DEd000022BAsv000010DEsd000016C1bc04sc03i00\n"}
OTHER_GPU = {"sys/bus/pci/devices/0000:00:02.0/modalias": "pci:v00008086d0000A780sv00001043sd00008882bc03sc00i00\n"}


def failure(root: Path, error: int, files: Mapping[str, str]) -> Failure | None:
    """What NVML's error means on a machine with these files."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return nvidia.nvml_failure(error, "in NVML's own words", root)


@pytest.mark.parametrize(
    ("error", "files"),
    [
        (NO_LIBRARY, {}),
        (NO_LIBRARY, GPU),
        (NOT_LOADED, {}),
        (NOT_LOADED, SOUND_CARD),
        (NOT_LOADED, OTHER_GPU),
        (NOT_LOADED, {"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": ""}),
    ],
    ids=["nothing", "another driver's GPU", "a login node", "a sound card", "a laptop", "a job without GPUs, --nv"],
)
def test_a_machine_without_a_driver_computes_on_the_cpu(tmp_path: Path, error: int, files: Mapping[str, str]) -> None:
    assert failure(tmp_path, error, files) is None


@pytest.mark.parametrize("files", [{NODE: ""}, GPU], ids=["/dev", "a GPU"])
def test_a_driver_that_is_not_loaded_although_there_is_a_gpu_is_named(tmp_path: Path, files: Mapping[str, str]) -> None:
    refused = failure(tmp_path, NOT_LOADED, files)
    assert refused is not None
    assert (refused.code, "modprobe nvidia" in refused.fix) == (ExitCode.NODE, True)


@pytest.mark.parametrize(
    ("error", "trace"),
    [(NO_LIBRARY, VERSION), (NO_LIBRARY, NODE), (NOT_LOADED, VERSION)],
    ids=["no library, /proc", "no library, /dev", "no device files"],
)
@pytest.mark.parametrize(
    ("mark", "code", "fix"),
    [
        (".singularity.d/actions/exec", ExitCode.IMAGE_MISMATCH, "apptainer exec --nv"),
        (".dockerenv", ExitCode.IMAGE_MISMATCH, "--gpus all"),
        ("etc/passwd", ExitCode.NODE, "NVIDIA_DRIVER_CAPABILITIES=compute,utility before srun"),
    ],
    ids=["apptainer", "docker", "no container, or pyxis"],
)
def test_a_container_that_has_not_all_of_the_driver_names_the_flag(
    tmp_path: Path, error: int, trace: str, mark: str, code: ExitCode, fix: str
) -> None:
    refused = failure(tmp_path, error, {trace: "", mark: ""})
    assert refused is not None
    assert (refused.code, fix in refused.fix, "--device cpu" in refused.fix) == (code, True, True)
    assert f"{tmp_path}/{trace}" in str(refused.found)


def test_a_library_without_its_link_is_named(tmp_path: Path) -> None:
    library = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05"
    refused = failure(tmp_path, NO_LIBRARY, {VERSION: "", ".dockerenv": "", library: ""})
    assert refused is not None
    assert ("libnvidia-ml.so.1" in refused.what, library in str(refused.found)) == (True, True)
    assert "ldconfig" in refused.fix


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="machine: it has NVML")
def test_a_machine_that_has_a_driver_and_no_library_is_not_read_as_one_without_gpus(tmp_path: Path) -> None:
    (tmp_path / VERSION).parent.mkdir(parents=True)
    (tmp_path / VERSION).touch()
    with pytest.raises(Failure, match=r"its libnvidia-ml\.so\.1 does not work") as refused:
        machine.read_machine({}, root=tmp_path)
    assert "cannot open shared object file" in str(refused.value.found)
    assert machine.read_machine({"CUDA_VISIBLE_DEVICES": ""}, root=tmp_path).gpus == ()


@pytest.mark.parametrize("library", ["nvml", "cuda"])
def test_each_error_has_one_fix(library: str) -> None:
    errors = Counter(error for problem in nvidia.DRIVER_PROBLEMS for error in getattr(problem, library))
    assert set(errors.values()) == {1}


def show(environ: Mapping[str, str]) -> tuple[int, str]:
    """The exit code of `entrypoint show` and what it says."""
    done = python("-m", "entrypoint", "show", environ=environ)
    return done.returncode, done.stdout + done.stderr


@NEEDS_STAND_INS
@pytest.mark.parametrize(
    ("faults", "code", "words", "fix"),
    [
        ({"NVML_INIT": "18"}, 78, "NVML error 18", "reboot the machine"),
        ({"NVML_INIT": "999"}, 78, "NVML error 999: Unknown Error", "systemctl daemon-reload"),
        ({"NVML_INIT": "4"}, 78, "Insufficient Permissions", "ls -l /dev/nvidia*"),
        ({"NVML_INIT": "15"}, 78, "GPU is lost", "reset"),
        ({"NVML_INIT": "13"}, 72, "Function Not Found", "LD_LIBRARY_PATH"),
        ({"NVML_INIT": "777"}, 78, "777", "nvidia-smi"),
        ({"NVML_LIST": "999"}, 78, "Unknown Error", "systemctl daemon-reload"),
        ({"NVML_OPEN": "15"}, 78, "GPU is lost", "srun --exclude"),
        ({"NVML_OPEN": "4"}, 78, "NVML counts 1, of which this process may open none", "--gpus-per-node=1"),
        ({"COUNT": "0"}, 78, "NVML counts 0", "--gpus all"),
    ],
    ids=str,
)
def test_gpus_that_cannot_be_opened_are_not_replaced_by_the_cpu(
    faults: dict[str, str], code: int, words: str, fix: str
) -> None:
    ended, text = show(null_gpu.driver_environment(**faults))
    assert (ended, words in text, fix in text) == (code, True, True), text


@NEEDS_STAND_INS
@pytest.mark.parametrize("choice", [{"ENTRYPOINT_DEVICE": "cpu"}, {"CUDA_VISIBLE_DEVICES": ""}], ids=str)
def test_whoever_asks_for_the_cpu_gets_it_beside_a_broken_driver(choice: dict[str, str]) -> None:
    ended, text = show(null_gpu.driver_environment(NVML_INIT="18") | choice)
    assert (ended, ["device", "cpu", "given"] in [line.split() for line in text.splitlines()]) == (0, True), text


@NEEDS_STAND_INS
def test_a_library_of_nvml_where_no_driver_runs_leaves_the_cpu() -> None:
    ended, text = show(null_gpu.driver_environment(NVML_INIT=str(NOT_LOADED)))
    if list(Path("/dev").glob("nvidia*")) or Path("/", VERSION).exists():
        pytest.skip("machine: it has a driver")
    assert (ended, "no NVIDIA driver" in text) == (0, True), text


@pytest.mark.needs_torch
@NEEDS_STAND_INS
def test_predictions_are_not_computed_on_the_cpu_because_the_driver_is_broken() -> None:
    done = python(
        "-m", "train", "predict", "runs/none", "none.png", environ=null_gpu.driver_environment(NVML_INIT="18")
    )
    assert (done.returncode, "NVML error 18" in done.stderr) == (78, True), done.stderr
