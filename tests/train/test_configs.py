"""The configurations that we ship: each trains for a few steps through the command `train`, alone and as two ranks."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from images import write_image
from made_up import pixels, write_mnist
from processes import python, unmeasured
from runs import Run

from train.config import load
from train.config.batches import compute_batch_sizes
from train.logging.metrics_logger import METRICS_FILE, read_events

CONFIGS = Path(__file__).parents[2] / "configs"
MEASURED = ("quickstart",)  # by coverage; the others run the same lines
# A step of bf16 may take a busy CPU longer than the 30 s after which a silent rank counts as hanging.
SHORT = ("train.max_steps=2", "log.every_steps=1", "launch.timeouts.step=600")
# Batches that a CPU computes in seconds.
SMALL = ("train.global_batch_size=4", "train.micro_batch_size=2")


def folders(root: Path, classes: int, each: int, size: int) -> None:
    """ROOT/train and ROOT/test, `each` images in every class of the first."""
    for side, count in (("train", each), ("test", 1)):
        for place in range(classes * count):
            write_image(root / side / f"class-{place % classes}" / f"{place}.png", place % 250, (size, size))


def arrays(root: Path, classes: int) -> tuple[str, ...]:
    """Images of the published size and number of classes; the published files themselves are known by their hashes."""
    for side, count in (("train", 3 * classes), ("test", 10)):
        np.savez(root / f"{side}.npz", images=pixels(count, 32, 32, 3), labels=np.arange(count) % classes)
    return ("data.name=npz", "data.download=false", f"data.root={root}")


def digits(root: Path) -> tuple[str, ...]:
    write_mnist(root, training=300)
    return (f"data.root={root}", "data.download=false")


def cifar10_folder(root: Path) -> tuple[str, ...]:
    folders(root, 10, 30, 32)
    return (f"data.root={root}",)


def finetune(root: Path) -> tuple[str, ...]:
    """Weights as torchvision publishes them, for another number of classes than the folder has."""
    from torchvision.models import resnet18

    torch.save(resnet18().state_dict(), root / "resnet18.pth")
    folders(root / "images", 3, 8, 64)
    return (f"data.root={root / 'images'}", f"model.weights={root / 'resnet18.pth'}", *SMALL)


# What each file needs: its data, made in a folder, and settings.
NEEDS: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "quickstart": lambda _: ("data.samples=400",),
    "imbalanced": lambda _: (),
    "clips3d": lambda _: ("data.samples=100",),
    "mnist": digits,
    "cifar10": lambda root: arrays(root, 10) + SMALL,
    "cifar10_folder": cifar10_folder,
    "cifar100_wrn": lambda root: arrays(root, 100) + SMALL,
    "cifar100_wrn_ours": lambda root: arrays(root, 100) + SMALL,
    "finetune": finetune,
}


@pytest.mark.parametrize("name", sorted(path.stem for path in CONFIGS.glob("*.yaml")))
def test_every_shipped_configuration_fits_the_four_gpus_of_the_job_scripts_or_says_how(name: str) -> None:
    text = (CONFIGS / f"{name}.yaml").read_text()
    train = load.load_config(str(CONFIGS / f"{name}.yaml"), []).train
    said = re.search(r"for 4: train\.micro_batch_size=(\d+)", text)
    assert (
        compute_batch_sizes(train.global_batch_size, int(said[1]) if said else train.micro_batch_size, 4).accumulation
        >= 1
    )


# The others train in a slower tier.
QUICK = {("quickstart", 2), ("finetune", 1)}


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        pytest.param(name, ranks, marks=() if (name, ranks) in QUICK else pytest.mark.slow)
        for name in sorted(path.stem for path in CONFIGS.glob("*.yaml"))
        for ranks in (1, 2)
    ],
)
@pytest.mark.timeout(700)
def test_every_shipped_configuration_trains(name: str, ranks: int, tmp_path: Path) -> None:
    (root := tmp_path / "needed").mkdir()
    world = ("--device", "cpu", "--procs-per-node", str(ranks))
    settings = (*NEEDS[name](root), *SHORT, "run.name=run")
    line = ("-m", "train", "--config", str(CONFIGS / f"{name}.yaml"), *world, *settings)
    environ = os.environ if name in MEASURED else unmeasured()
    ended = python(*line, cwd=tmp_path, env=environ, timeout=600)  # bf16 on a busy CPU takes minutes
    assert ended.returncode == 0, ended.stderr
    assert "WARNING" not in ended.stdout + ended.stderr
    run = Run(folder=tmp_path / "runs" / "run")
    losses = [event["loss"] for event in read_events(run.folder / METRICS_FILE) if "loss" in event]
    assert run.logged() == [1, 2]
    assert all(map(math.isfinite, losses))
