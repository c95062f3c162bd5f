"""Trainings on null GPUs, as tests start them. null_gpu.py makes the stand-ins."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

SUPPORT = Path(__file__).parent
Start = Callable[..., subprocess.CompletedProcess[str]]
# Six steps of 32 images and three evaluations.
SETTINGS = (
    *("run.name=run", "data.samples=160", "data.image_size=16", "data.classes=4"),
    *("data.val_fraction=0.4", "model.args.width=4", "train.global_batch_size=32", "train.epochs=2"),
    *("log.every_steps=1", "log.tensorboard=false", "log.gpu_every_seconds=1"),
)
TRAIN = ("-m", "train", "--device", "cuda", *SETTINGS)
TWO_GPUS = {"gpus": 2}
LIMIT_S = 900.0  # compiling takes minutes on a busy machine


def replaced(settings: Mapping[str, str]) -> list[str]:
    """TRAIN with other values."""
    names = [word.partition("=")[0] for word in TRAIN]
    return [f"{name}={settings[name]}" if name in settings else word for name, word in zip(names, TRAIN, strict=True)]


def steps(start: Start, tmp_path: Path, *settings: str, **variables: str) -> list[dict[str, int]]:
    words = (str(SUPPORT / "null_gpu_steps.py"), str(tmp_path / "run"), *settings)
    done = start(*words, PYTHONPATH=str(SUPPORT), **variables)
    assert done.returncode == 0, done.stderr
    counts: list[dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    return counts
