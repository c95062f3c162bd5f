"""The configurations that we ship: each trains for a few steps through the command `train`, recipes are checked."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from images import write_classes, write_image
from jobs import built
from made_up import pixels, write_mnist
from processes import python, unmeasured
from runs import Run

from train import __main__ as front
from train.config import load
from train.config.batches import compute_batch_sizes
from train.logging.metrics_logger import METRICS_FILE, read_events

CONFIGS = Path(__file__).parents[2] / "configs"
MEASURED = ("quickstart",)  # by coverage; the others run the same lines

# A step of bf16 may take a busy CPU longer than the 30 s after which a silent rank counts as hanging.
SHORT = ("train.max_steps=2", "log.every_steps=1", "launch.timeouts.step=600")

# Batches that a CPU computes in seconds.
SMALL = ("train.global_batch_size=4", "train.micro_batch_size=2")
IMBALANCED = CONFIGS / "imbalanced.yaml"
RECIPES = sorted((CONFIGS / "recipes").glob("*.yaml"))

# Few images, and a precision that a CPU has.
FEW_IMAGES = ("train.global_batch_size=8", "train.micro_batch_size=4", "train.max_steps=2", "train.precision=fp32")


def folders(root: Path, classes: int, each: int, size: int) -> None:
    """ROOT/train and ROOT/test, `each` images in every class of the first."""
    for side, count in (("train", each), ("test", 1)):
        for number in range(classes * count):
            write_image(root / side / f"class-{number % classes}" / f"{number}.png", number % 250, (size, size))


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
    match = re.search(r"for 4: train\.micro_batch_size=(\d+)", text)
    assert (
        compute_batch_sizes(train.global_batch_size, int(match[1]) if match else train.micro_batch_size, 4).accumulation
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


def macro_f1(folder: Path, seed: int, weights: str) -> float:
    """On the validation images, at the end of the whole run."""
    settings = (f"run.seed={seed}", f"optim.class_weights={weights}", "log.tensorboard=false")
    with built(folder, *settings, config=IMBALANCED) as trainer:
        trainer.fit()
        assert trainer.state.result is not None
        value = trainer.state.result.value("macro_f1")
        assert value is not None
        return value


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_weights_raise_macro_f1_where_one_sample_in_a_hundred_is_rare(seed: int, tmp_path: Path) -> None:
    balanced, none = (macro_f1(tmp_path / kind, seed, kind) for kind in ("balanced", "none"))
    assert balanced >= none + 0.1


def write_images(name: str, root: Path) -> tuple[str, ...]:
    """Two classes in the place of ImageNet's. CIFAR-10 is checked without its files."""
    if name.startswith("cifar10"):
        return ()
    for split, count in (("train", 8), ("val", 2)):
        write_classes(root / split, ant=count, bee=count)
    return (f"data.root={root}",)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_train_check_accepts_every_recipe(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = (*write_images(path.stem, tmp_path / "images"), *FEW_IMAGES)
    assert front.run_command(["check", "--config", str(path), "--device", "cpu", *settings], {}) == 0
    plan = capsys.readouterr().out
    assert "WARNING" not in plan
    assert "steps          " in plan


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_divides_among_one_two_and_four_gpus(path: Path) -> None:
    train = load.load_config(str(path), []).train
    for world_size in (1, 2, 4):
        assert compute_batch_sizes(train.global_batch_size, train.micro_batch_size, world_size).accumulation >= 1


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_has_a_table_in_the_docs_that_says_of_each_option_whether_it_is_equal(path: Path) -> None:
    page = (CONFIGS.parent / "docs" / "evidence" / "recipes.md").read_text()
    section = page.partition(f"(../../configs/recipes/{path.name})")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+) \|$", section, re.MULTILINE)[2:]
    assert len(rows) >= 10
    for row in rows:
        *_, equal = (cell.strip() for cell in row.replace(r"\|", "/").split("|"))
        assert re.match(r"(yes|no)\b", equal), row
