"""Every mode of a training, a hang, a resume and little memory, on null GPUs."""

from __future__ import annotations

import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import null_gpu
import pytest
from null_gpu_trainings import TRAIN, TWO_GPUS, Start, replaced
from processes import free_port

pytestmark = [
    pytest.mark.slow,
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


@pytest.mark.parametrize("mode", MODES)
def test_each_mode_trains_on_two_gpus(start: Start, mode: str) -> None:
    done = start(*TRAIN, *MODES[mode].split(), **TWO_GPUS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_four_gpus_train_together(start: Start) -> None:
    done = start(*TRAIN, gpus=4)
    assert (done.returncode, "4 ranks on 1 node" in done.stderr + done.stdout) == (0, True), done.stderr


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


def test_two_tasks_that_see_one_gpu_each_train_together(start: Start, tmp_path: Path) -> None:
    shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}

    def start_task(rank: str) -> subprocess.CompletedProcess[str]:
        return start(*TRAIN, gpus=2, CUDA_VISIBLE_DEVICES=rank, RANK=rank, LOCAL_RANK=rank, **shared)

    with ThreadPoolExecutor() as threads:
        first, second = threads.map(start_task, "01")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert json.loads((tmp_path / "runs/run/run.json").read_text())["world"]["world_size"] == 2


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


def test_on_a_gpu_with_less_memory_the_micro_batch_is_smaller(start: Start) -> None:
    settings = {"data.samples": "2560", "model.args.width": "64", "train.global_batch_size": "1024"}
    words = replaced(settings)
    batches = []
    for gib in (150, 1):
        done = start(*words, f"run.output_dir={gib}", faults={"BYTES": str(gib << 30)})
        assert done.returncode == 0, done.stdout + done.stderr
        batches += re.findall(r"= (\d+) micro x", done.stdout + done.stderr)
    assert int(batches[1]) < int(batches[0]) == 1024
