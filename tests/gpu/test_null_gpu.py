"""What the host does with GPUs, on null GPUs. No number that a GPU would compute is looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import null_gpu
import pytest
from null_gpu_trainings import LIMIT_S, SETTINGS, TRAIN, TWO_GPUS, Start, steps

from train.logging.metrics_logger import METRICS_FILE, read_events

pytestmark = [
    pytest.mark.skipif(null_gpu.missing_runtime() is not None, reason=str(null_gpu.missing_runtime())),
    pytest.mark.timeout(1000),
]


def test_two_gpus_train_together_and_leave_a_checkpoint(start: Start, tmp_path: Path) -> None:
    done = start(*TRAIN, **TWO_GPUS)
    assert done.returncode == 0, done.stdout + done.stderr
    events = read_events(tmp_path / "runs/run" / METRICS_FILE)
    assert [event["step"] for event in events if event["event"] == "train"] == [1, 2, 3, 4, 5, 6]
    assert json.loads((tmp_path / "runs/run/run.json").read_text())["world"]["world_size"] == 2
    assert (tmp_path / "runs/run/checkpoints/step-00000006/manifest.json").is_file()


def test_between_two_log_points_a_step_waits_for_nothing_and_takes_no_memory(start: Start, tmp_path: Path) -> None:
    names = ("synchronizations", "device_to_host", "allocations", "pinned_allocations")
    assert [[step[name] for name in names] for step in steps(start, tmp_path)] == [[0] * len(names)] * 4


@pytest.mark.skipif(not {0, 1} <= os.sched_getaffinity(0), reason="machine: cores 0 and 1 are not both there")
def test_each_rank_runs_on_the_cores_near_its_gpu_and_show_names_them(start: Start, tmp_path: Path) -> None:
    on_two_cores = "import os, sys; os.sched_setaffinity(0, {0, 1}); python = sys.executable; "
    on_two_cores += "os.execv(python, [python, *sys.argv[1:]])"

    def entrypoint(*words: str) -> str:
        done = start("-c", on_two_cores, "-m", "entrypoint", *words, faults={"APART": "1"}, **TWO_GPUS)
        assert done.returncode == 0, done.stderr
        return done.stdout

    entrypoint("run", "--", sys.executable, "-c", "import os; print(os.sched_getaffinity(0))")
    assert [(tmp_path / f"logs/rank-000{rank}.log").read_text() for rank in (0, 1)] == ["{0}\n", "{1}\n"]
    assert [line.split() for line in entrypoint("show").splitlines() if line.startswith("cores")] == [
        ["cores", core, "near", "the", "GPU", "of", "local", "rank", core] for core in ("0", "1")
    ]


def test_a_start_does_not_wait_for_nvidia_smi(start: Start, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\n")
    program.chmod(0o755)
    steps(start, tmp_path, PATH=f"{program.parent}:{os.environ['PATH']}")
    assert not (tmp_path / "called").exists()


def test_a_step_launches_no_more_kernels_than_it_did(start: Start, tmp_path: Path) -> None:
    step = steps(start, tmp_path)[-1]
    # Counted in November 2026 for small_cnn, 64 images in bf16; fewer is fine.
    assert step["launches"] <= 134


def test_the_samples_of_many_small_steps_are_copied_to_the_gpu_at_once(start: Start, tmp_path: Path) -> None:
    assert [step["host_to_device"] for step in steps(start, tmp_path)] == [0] * 4


@pytest.mark.parametrize(
    ("faults", "code", "says"),
    [
        ({"NCCL_INIT": "2", "NCCL_LAST_ERROR": "socketStartConnect failed"}, 69, "NCCL"),
        ({"FAIL": "1:900:214"}, 78, "uncorrectable ECC error"),
    ],
    ids=["no network", "broken memory"],
)
def test_a_fault_of_a_gpu_or_its_network_ends_with_the_code_of_its_kind(
    start: Start, faults: dict[str, str], code: int, says: str
) -> None:
    done = start(*TRAIN, faults=faults, **TWO_GPUS)
    assert (done.returncode, says in done.stderr) == (code, True), done.stderr


@pytest.mark.parametrize(
    ("faults", "image"),
    [
        ({"DRIVER": "535.183.01", "DRIVER_CUDA": "12020"}, "make image CUDA=12"),
        ({"CAPABILITY": "70", "NAME": "Tesla V100"}, "make image CUDA=12"),
        ({"DRIVER": "470.82.01", "DRIVER_CUDA": "11040"}, "driver 525 or newer"),
    ],
    ids=["an older driver", "an older GPU", "a driver for no image"],
)
def test_a_driver_or_gpu_that_does_not_fit_is_refused_before_torch_is_loaded(
    start: Start, tmp_path: Path, faults: dict[str, str], image: str
) -> None:
    done = start(*TRAIN, faults=faults)
    assert (done.returncode, image in done.stderr) == (72, True), done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("faults", "code", "fix"),
    [
        ({"NVML_INIT": "18"}, 78, "reboot the machine"),
        ({"NVML_INIT": "999"}, 78, "systemctl daemon-reload"),
        ({"CUDA_INIT": "802"}, 78, "nvidia-fabricmanager"),
        ({"CUDA_INIT": "crash"}, 78, "nvidia-smi"),
        ({"CUDA_INIT": "804"}, 72, "unset CUDA_COMPAT"),
    ],
    ids=str,
)
def test_a_driver_that_does_not_open_its_gpus_is_refused_before_torch_is_loaded(
    start: Start, tmp_path: Path, faults: dict[str, str], code: int, fix: str
) -> None:
    done = start("-m", "train", *SETTINGS, faults=faults)
    assert (done.returncode, fix in done.stderr) == (code, True), done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_run_of_a_gpu_goes_on_without_its_driver_only_on_request(
    start: Start, stand_in: Path, tmp_path: Path
) -> None:
    assert start(*TRAIN).returncode == 0

    def go_on(*words: str) -> subprocess.CompletedProcess[str]:
        environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
        longer = [word.replace("train.epochs=2", "train.epochs=3") for word in SETTINGS]
        command = [null_gpu.python(stand_in), "-m", "train", *longer, *words]
        return subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=LIMIT_S)

    refused = go_on()
    assert (refused.returncode, "this run has trained on a GPU" in refused.stderr) == (78, True), refused.stderr
    allowed = go_on("--device", "cpu")
    assert (allowed.returncode, "device is CPU" in allowed.stdout) == (0, True), allowed.stdout + allowed.stderr
