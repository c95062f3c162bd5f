"""What only a real GPU can show: numbers. `pytest tests/gpu/test_gpu.py -n 8` takes 90 s on one GPU with 16 cores."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest
import torch
from gpu_trainings import accuracy, bits, losses, run_program, train, write_photos
from runs import Run

pytestmark = pytest.mark.timeout(400)
if not torch.cuda.is_available():
    pytest.skip("gpu: none on this machine", allow_module_level=True)

EXACT = ("train.precision=fp32", "train.max_steps=3", "optim.lr=0.001")
MODES = {
    "fp32": ("train.precision=fp32",),
    "tf32": ("train.precision=fp32", "train.tf32=true"),
    "fp16": ("train.precision=fp16",),
    "bf16": ("train.precision=bf16",),
    "accumulation": ("train.micro_batch_size=16",),
    "clipping and EMA": ("train.clip_grad_norm=1.0", "train.ema_decay=0.9"),
    "fastest kernels": ("train.reproducible=none",),
    "bitwise": ("train.reproducible=bitwise", "train.micro_batch_size=8"),
    "AdamW": ("optim.name=adamw", "optim.lr=0.002"),
    "data workers": ("data.loader=workers", "data.workers=2"),
    "activation checkpointing": (
        *("train.activation_checkpointing=true", "model.name=wide_resnet", "model.args={depth: 1, width: 2}"),
    ),
    "compiled": ("train.compile=default",),
    "CUDA graphs": ("train.compile=reduce-overhead",),
    "every augmentation": (
        "data.augment=[random_resized_crop, rand_augment, color_jitter, random_erasing, mixup, cutmix]",
    ),
    "binary cross-entropy": ("optim.loss=bce", "optim.target_threshold=0.2", "data.augment=[cutmix]"),
    "whitened first layer": ("model.args={width: 16, stem: whitened, pool: early}", "optim.lr=0.005"),
    "a transformer": (
        *("model.name=timm/vit_tiny_patch16_224", "model.args={patch_size: 8}"),
        *("optim.name=adamw", "optim.lr=0.001"),
    ),
    "a ResNet of timm": (
        *("data.image_size=64", "data.augment=imagenet", "model.name=timm/resnet18", "model.args={}"),
    ),
    "growing images": (
        *("data.image_size=64", "data.progressive_size={start: 32, epochs: 1}"),
        *("model.name=timm/resnet18", "model.args={}"),
    ),
}


def column(table: Path, name: str) -> list[str]:
    """A column of a CSV file."""
    with table.open(newline="", encoding="utf-8-sig") as file:
        return [row[name] for row in csv.DictReader(file)]


@pytest.fixture(autouse=True)
def _photos(tmp_path: Path) -> None:
    write_photos(tmp_path)


@pytest.mark.parametrize("mode", MODES)
def test_the_loss_falls_in_each_mode(tmp_path: Path, mode: str) -> None:
    seen = losses(train(tmp_path, *MODES[mode]))
    assert all(map(math.isfinite, seen))
    assert sum(seen[-4:]) < sum(seen[:4])


def test_the_quickstart_learns_its_ten_classes(tmp_path: Path) -> None:
    run_program(tmp_path, "train", "--device", "cuda", "run.name=run")
    assert accuracy(Run(folder=tmp_path / "runs/run")) > 0.95


@pytest.mark.parametrize("augment", ["none", "standard", "[random_resized_crop, rand_augment, color_jitter, mixup]"])
def test_a_gpu_and_a_cpu_compute_the_same_first_losses(tmp_path: Path, augment: str) -> None:
    settings = (*EXACT, f"data.augment={augment}")
    on_gpu, on_cpu = (losses(train(tmp_path, *settings, device=device, name=device)) for device in ("cuda", "cpu"))
    assert on_gpu == pytest.approx(on_cpu, rel=2e-3)


def test_photos_that_are_cut_at_random_are_the_same_on_a_gpu_and_a_cpu(tmp_path: Path) -> None:
    settings = (*EXACT, "data.augment=imagenet")
    on_gpu, on_cpu = (losses(train(tmp_path, *settings, device=device, name=device)) for device in ("cuda", "cpu"))
    assert on_gpu == pytest.approx(on_cpu, rel=2e-3)


@pytest.mark.parametrize("reproducible", ["fast", "bitwise"])
def test_a_run_that_was_stopped_ends_with_the_bits_of_one_that_was_not(tmp_path: Path, reproducible: str) -> None:
    settings = (f"train.reproducible={reproducible}", "train.micro_batch_size=16", "train.precision=bf16")
    uninterrupted = train(tmp_path, *settings, name="whole")
    train(tmp_path, *settings, "train.max_steps=7", name="stopped")
    stopped = train(tmp_path, *settings, name="stopped")
    assert bits(stopped) == bits(uninterrupted)


def test_a_run_is_evaluated_on_a_gpu_as_on_a_cpu(tmp_path: Path) -> None:
    train(tmp_path, "train.precision=fp32")
    for device in ("cuda", "cpu"):
        run_program(tmp_path, "train", "eval", "runs/run", "--device", device, "--per-image", f"{device}.csv")
    on_gpu, on_cpu = (column(tmp_path / f"{device}.csv", "loss") for device in ("cuda", "cpu"))
    assert list(map(float, on_gpu)) == pytest.approx(list(map(float, on_cpu)), rel=1e-3, abs=1e-4)


def test_an_exported_network_answers_on_a_gpu_as_on_a_cpu(tmp_path: Path) -> None:
    train(tmp_path, "train.precision=fp32")
    run_program(tmp_path, "train", "export", "runs/run", "--output", "model")
    for device in ("cuda", "cpu"):
        run_program(tmp_path, "train", "predict", "model", "photos/red", "--device", device, "--csv", f"{device}.csv")
    on_gpu, on_cpu = (column(tmp_path / f"{device}.csv", "confidence") for device in ("cuda", "cpu"))
    assert len(on_gpu) == 150
    assert list(map(float, on_gpu)) == pytest.approx(list(map(float, on_cpu)), rel=1e-3, abs=1e-4)


def test_a_report_draws_heat_maps_with_a_gpu(tmp_path: Path) -> None:
    train(tmp_path)
    run_program(tmp_path, "train", "eval", "runs/run", "--device", "cuda", "--report", "--explain")
    run_program(tmp_path, "train", "report", "runs/run")
    assert json.loads((tmp_path / "runs/run/evaluation.json").read_text())


def test_a_learning_rate_is_found_on_a_gpu(tmp_path: Path) -> None:
    run_program(tmp_path, "train", "find-lr", "--device", "cuda", "run.name=run", "optim.lr=0.05")
    assert (tmp_path / "run-find-lr.csv").stat().st_size > 0


def test_doctor_names_the_gpu(tmp_path: Path) -> None:
    assert torch.cuda.get_device_name() in run_program(tmp_path, "entrypoint", "doctor")
