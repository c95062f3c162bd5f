"""Trainings on a real GPU, and what is read of them."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from runs import Run

from train.logging.metrics_logger import METRICS_FILE, read_events

LIMIT_S = 300.0
# 22 steps of 32 images in two epochs.
SMALL = {
    "data.name": "folder",
    "data.root": "photos",
    "model.args": "{width: 16}",
    "optim.lr": "0.02",
    "optim.schedule": "constant",
    "optim.warmup_epochs": "0",
    "train.global_batch_size": "32",
    "train.epochs": "2",
    "log.every_steps": "1",
    "log.tensorboard": "false",
}


def run_program(folder: Path, *words: str) -> str:
    """`python -m WORDS` in a folder; its output."""
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def train(folder: Path, *settings: str, device: str = "cuda", name: str = "run") -> Run:
    """Train in FOLDER/runs/NAME."""
    values = SMALL | dict(word.split("=", 1) for word in settings)
    words = [f"{name}={value}" for name, value in values.items()]
    run_program(folder, "train", "--device", device, f"run.name={name}", *words)
    return Run(folder=folder / "runs" / name)


def losses(run: Run) -> list[float]:
    return [event["loss"] for event in read_events(run.folder / METRICS_FILE) if event["event"] == "train"]


def accuracy(run: Run) -> float:
    return [event["accuracy"] for event in read_events(run.folder / METRICS_FILE) if event["event"] == "eval"][-1]


def bits(run: Run) -> str:
    """The hash of all weights at the end."""
    step = run.committed()
    assert step is not None
    weights = run.weights(step)
    return hashlib.sha256(b"".join(weights[name].tobytes() for name in sorted(weights))).hexdigest()


def write_photos(folder: Path) -> None:
    """FOLDER/photos: red, green and blue pictures with noise, as JPEG files of several sizes."""
    noise = np.random.default_rng(0)
    for channel, color in enumerate(("red", "green", "blue")):
        folder_ = folder / "photos" / color
        folder_.mkdir(parents=True)
        for number in range(150):
            pixels = noise.integers(0, 160, (90 + number % 7, 120 - number % 5, 3), dtype=np.uint8)
            pixels[..., channel] += 90
            Image.fromarray(pixels).save(folder_ / f"{number:03d}.jpg")
