"""What the host does with GPUs, on null GPUs. No number that a GPU would compute is looked at."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import null_gpu
import pytest
from null_gpu_trainings import LIMIT_S, SETTINGS, SUPPORT, TRAIN, TWO_GPUS, Start, replaced, steps
from processes import free_port

from train.logging.metrics_logger import METRICS_FILE, read_events

pytestmark = [
    pytest.mark.skipif(null_gpu.missing_runtime() is not None, reason=str(null_gpu.missing_runtime())),
    pytest.mark.timeout(1000),
]
MODES = {
    "fp32": "train.precision=fp32",
    "fp16": "train.precision=fp16",
    "accumulation": "train.micro_batch_size=8",
    "clipping and EMA": "train.clip_grad_norm=1.0 train.ema_decay=0.9",
    "fastest kernels": "train.reproducible=none",
    "bitwise": "train.reproducible=bitwise train.micro_batch_size=8 model.args.norm=group",
    "AdamW": "optim.name=adamw optim.lr=0.001",
    "gradients in bf16": "train.gradient_exchange=bf16",
    "synchronized BatchNorm": "train.sync_batchnorm=true model.args.norm=batch",
    "data workers": "data.loader=workers data.workers=1",
    "DataParallel": "train.parallel=dp --procs-per-node 1",
    "compiled": "train.compile=default",
    "CUDA graphs": "train.compile=reduce-overhead",
}


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


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_each_mode_trains_on_two_gpus(start: Start, mode: str) -> None:
    done = start(*TRAIN, *MODES[mode].split(), **TWO_GPUS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_four_gpus_train_together(start: Start) -> None:
    done = start(*TRAIN, gpus=4)
    assert (done.returncode, "4 ranks on 1 node" in done.stderr + done.stdout) == (0, True), done.stderr


@pytest.mark.slow
def test_if_all_gpus_hang_no_rank_is_blamed_and_the_unfinished_collective_is_named(
    start: Start, tmp_path: Path
) -> None:
    # No evaluation, whose time-out and words are others: how many launches come before one is not this test's matter.
    settings = (*replaced({"train.epochs": "200"}), "eval.every_epochs=200", "launch.timeouts.step=5")
    done = start(*settings, faults={"HANG": "-1:3000"}, **TWO_GPUS)
    assert done.returncode == 91, done.stderr
    assert "all 2 ranks wait for their GPUs after step" in done.stderr
    assert re.search(r"not ended in NCCL: all_reduce \d+ of [\d,]+ numbers", done.stderr)
    assert {path.name for path in (tmp_path / "runs/run/errors").glob("nccl-*")} == {"nccl-rank-0", "nccl-rank-1"}


@pytest.mark.slow
def test_two_tasks_that_see_one_gpu_each_train_together(start: Start, tmp_path: Path) -> None:
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def start_task(rank: str) -> subprocess.CompletedProcess[str]:
        return start(*TRAIN, gpus=2, CUDA_VISIBLE_DEVICES=rank, RANK=rank, LOCAL_RANK=rank, **shared)

    with ThreadPoolExecutor() as threads:
        first, second = threads.map(start_task, "01")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert json.loads((tmp_path / "runs/run/run.json").read_text())["world"]["world_size"] == 2


@pytest.mark.slow
def test_a_run_is_resumed_evaluated_and_exported(start: Start, tmp_path: Path) -> None:
    for words in (
        (*TRAIN, "train.max_steps=3"),
        replaced({"train.epochs": "3"}),
        ("-m", "train", "eval", "runs/run", "--device", "cuda"),
        ("-m", "train", "export", "runs/run", "--output", "model"),
    ):
        done = start(*words, **TWO_GPUS)
        assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "runs/run/checkpoints/step-00000009/manifest.json").is_file()
    assert (tmp_path / "model/model.safetensors").is_file()


@pytest.mark.slow
def test_on_a_gpu_with_less_memory_the_micro_batch_is_smaller(start: Start) -> None:
    settings = {"data.samples": "2560", "model.args.width": "64", "train.global_batch_size": "1024"}
    words = replaced(settings)
    batches = []
    for gib in (150, 1):
        done = start(*words, f"run.output_dir={gib}", faults={"BYTES": str(gib << 30)})
        assert done.returncode == 0, done.stdout + done.stderr
        batches += re.findall(r"= (\d+) micro x", done.stdout + done.stderr)
    assert int(batches[1]) < int(batches[0]) == 1024


@pytest.mark.slow
def test_with_cuda_graphs_few_launches_are_left_for_input_optimizer_and_loss(start: Start, tmp_path: Path) -> None:
    step = steps(start, tmp_path, "train.compile=reduce-overhead")[-1]
    # Counted in November 2026; the input took 28 of 41 before it was compiled.
    assert (step["graph_launches"], step["launches"] <= 16) == (2, True), step


# The code that torch's compiler and ptxas make, for one GPU of each architecture: T4, A100, H100, B200, RTX 50.
@pytest.mark.slow
@pytest.mark.parametrize("capability", ["75", "80", "90", "100", "120"])
def test_code_is_made_for_each_architecture(start: Start, capability: str) -> None:
    done = start(*replaced({"train.epochs": "1"}), "train.compile=default", faults={"CAPABILITY": capability})
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"graphs: \d+", done.stdout + done.stderr)


# One or two of each family.
MODELS = (
    *("small_cnn", "wide_resnet", "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s"),
    *("googlenet", "inception_v3", "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_y_400mf"),
    *("resnet18", "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_0", "swin_t", "swin_v2_t", "vgg11", "vit_b_32"),
)
NOT_REPEATABLE = {"alexnet", "vgg11"}


@pytest.mark.slow
def test_all_families_of_models_but_two_have_repeatable_kernels(start: Start) -> None:
    done = start(str(SUPPORT / "null_gpu_models.py"), *MODELS)
    assert done.returncode == 0, done.stderr
    refused = {name for name, text in json.loads(done.stdout.splitlines()[-1]).items() if text}
    assert refused == NOT_REPEATABLE


def run_script(stand_in: Path, folder: Path, name: str, *words: str, gpus: int) -> subprocess.CompletedProcess[str]:
    """A script of bench/ on null GPUs, whose `train` is this checkout's."""
    train = folder / "bin" / "train"
    train.parent.mkdir()
    train.write_text(f'#!/bin/sh\nexec {null_gpu.python(stand_in)} -m train "$@"\n')
    train.chmod(0o755)
    environ = {"PATH": f"{train.parent}:{os.environ['PATH']}", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    environ |= {"PYTHON": null_gpu.python(stand_in), "LIMIT_S": f"{LIMIT_S:.0f}"} | null_gpu.environment(stand_in, gpus)
    script = Path(__file__).parents[2] / "bench" / name
    return subprocess.run([script, *words], cwd=folder, env=environ, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.mark.slow
def test_the_script_for_one_gpu_trains_and_measures_its_rows(stand_in: Path, tmp_path: Path) -> None:
    done = run_script(stand_in, tmp_path, "gpu.sh", "out", "--quick", "--rows", "3", gpus=1)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 steps in" in (tmp_path / "out/first.txt").read_text()
    rows = json.loads((tmp_path / "out/bench.json").read_text())["rows"]
    missing = {row["row"]: row["missing"] for row in rows if row["value"] is None}
    assert missing == {"14 DataParallel": "needs two GPUs"}
    assert {"3a", "3b", "14", "11a"} <= {row["row"] for row in rows}


@pytest.mark.slow
def test_the_script_for_several_gpus_sees_each_end_that_it_expects(stand_in: Path, tmp_path: Path) -> None:
    done = run_script(stand_in, tmp_path, "gpus.sh", gpus=2)
    assert done.returncode == 0, done.stdout
    assert len(re.findall(r"exit code (\d+), expected \1,", done.stdout)) == 8
