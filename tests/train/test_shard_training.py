"""Training on tar shards: the same weights on any number of ranks, whatever stopped the run in between."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import numpy as np
import pytest
from jobs import trained
from PIL import Image
from processes import python, unmeasured
from runs import Run

from train.config.schema import DataConfig
from train.data.shards import packing

# 24 steps in three epochs, from 16 readers.
SETTINGS = (
    *("data.name=shards", "data.root=shards", "data.image_size=8", "data.loader=workers", "data.workers=1"),
    *("data.readers=16", "data.augment=[random_resized_crop, horizontal_flip, mixup]", "model.args={width: 4}"),
    *("optim.schedule=constant", "optim.warmup_epochs=0", "optim.lr=0.02", "log.tensorboard=false"),
    *("train.epochs=3", "train.global_batch_size=32", "train.micro_batch_size=8", "train.reproducible=bitwise"),
    *("eval.every_epochs=100", "checkpoint.every_steps=1", "log.every_steps=1"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with shards of a few images each."""
    folder = tmp_path_factory.mktemp("shards")
    noise = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (folder / "photos" / name).mkdir(parents=True)
        for number in range(160):
            Image.fromarray(noise.integers(0, 256, (12, 16, 3), dtype=np.uint8)).save(
                folder / "photos" / name / f"{number}.png"
            )
    data = DataConfig(name="folder", root=str(folder / "photos"), image_size=8)
    packing.pack_images(data, folder / "shards", scaling=None, say=lambda line: None, shard_bytes=20_000)
    return folder


def train(folder: Path, name: str, ranks: int, *settings: str, fault: str | None = None) -> int:
    words = ("-m", "train", "--device", "cpu", "--procs-per-node", str(ranks), f"run.name={name}", *SETTINGS, *settings)
    done = python(*words, cwd=folder, env=unmeasured() | ({} if fault is None else {"FAULT": fault}))
    assert done.returncode == 0 or fault is not None, done.stdout + done.stderr
    return done.returncode


def bits(folder: Path, name: str) -> str:
    weights = Run(folder=folder / "runs" / name).weights(24)
    return hashlib.sha256(b"".join(weights[key].tobytes() for key in sorted(weights))).hexdigest()


@pytest.fixture(scope="module")
def alone(folder: Path) -> str:
    """The bits of one rank that nothing stopped."""
    trained(folder / "runs" / "alone", *SETTINGS, f"data.root={folder / 'shards'}", "data.classes=10")
    return bits(folder, "alone")


def test_two_ranks_that_are_killed_and_then_one_end_with_the_bits_of_one(folder: Path, alone: str) -> None:
    assert train(folder, "chain", 2, fault="step:1:11:kill9") == 69
    train(folder, "chain", 1)
    assert bits(folder, "chain") == alone


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_twenty_kills_on_one_two_and_four_ranks_change_no_bit(folder: Path, alone: str) -> None:
    steps = sorted(random.Random(5).sample(range(2, 24), 20))
    for number, step in enumerate(steps):
        ranks = (1, 2, 4)[number % 3]
        assert train(folder, "kills", ranks, fault=f"step:{number % ranks}:{step}:kill9") == 69
    train(folder, "kills", 2)
    assert bits(folder, "kills") == alone
