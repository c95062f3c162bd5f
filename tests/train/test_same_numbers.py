"""The same weights after ten steps on 1, 2 and 4 ranks, in real process groups; with bitwise the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from grid import train_table
from runs import Run

from train.config import schema
from train.logging.metrics_logger import METRICS_FILE, read_events

WORLDS = (1, 2, 4)
ONE_BATCH = "train.micro_batch_size=48"
SMOOTH = "model.name=smooth:make"

# Adam and its like divide by what may be a rounding error where a gradient is nothing: eps keeps that out.
CALM = ["optim.lr=0.002", "optim.args.eps=1e-3"]
SCHEDULES = {kind: [f"optim.schedule={kind}", "optim.warmup_epochs=0.2"] for kind in schema.SCHEDULES}
OPTIMIZERS = {name: [f"optim.name={name}", *CALM] for name in ("adam", "adamw", "NAdam", "RMSprop")}
OPTIONS = {
    "label-smoothing": ["optim.label_smoothing=0.1"],
    "balanced": ["data.imbalance=9", "optim.class_weights=balanced"],
    "clipped": ["train.clip_grad_norm=0.05"],
    "averaged": ["train.ema_decay=0.9"],
    "decay-of-weights-only": ["optim.weight_decay_on=weights"],
    "nesterov": ["optim.args.nesterov=true"],
    "own-loss": ["optim.loss=focal:Focal"],
    "scaled-rate": ["optim.lr_scaling=sqrt", "optim.base_batch_size=12"],
}
ROWS = SCHEDULES | OPTIMIZERS | OPTIONS

# Each row as one batch on one rank, and cut into micro batches of 4 and of 12.
CUTS = {"whole": [ONE_BATCH], "by-4": ["train.micro_batch_size=4"], "by-12": ["train.micro_batch_size=12"]}

# What `make test` has time for: each of these acts on the gradient or on the weights in a way of its own.
QUICK = ("cosine", "adamw", "balanced", "clipped", "averaged", "own-loss")
QUICK_CUTS = {1: ["whole"], 2: ["by-12"]}
EIGHT = ["train.reproducible=bitwise", "train.global_batch_size=64", "train.micro_batch_size=8"]
EIGHT += ["data.image_size=8", "eval.batch_size=25"]
CALM_STEPS = ["optim.lr=0.002", "train.clip_grad_norm=0.05", "train.ema_decay=0.9"]
BITWISE_ROWS = {
    "sgd": ["model.args.width=8"],
    "adamw": ["optim.name=adamw", *CALM_STEPS, "model.args.dropout=0.1"],
    "batchnorm": ["model.args.norm=batch", "train.ema_decay=0.9", "train.precision=bf16"],
    "mixed": ["data.augment=[random_resized_crop, rand_augment, color_jitter, random_erasing, mixup, cutmix]"],
    "fast": ["train.reproducible=fast", "train.micro_batch_size=16"],
}
STOPS = {4: 3, 2: 6, 1: 10}  # the steps at which the run of each world ends, and the next goes on


def grid_table(rows: Iterable[str], cuts: Sequence[str]) -> dict[str, list[str]]:
    """The settings of each row, cut in each of these ways, by ROW-CUT."""
    return {f"{row}-{cut}": [SMOOTH, *ROWS[row], *CUTS[cut]] for row in rows for cut in cuts}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FOLDER/ROW-CUT/WORLD_SIZE for every row in every world; the whole batch on one rank only."""
    folder = tmp_path_factory.mktemp("grid")
    for ranks in WORLDS:
        train_table(folder, ranks, grid_table(ROWS, [cut for cut in CUTS if ranks == 1 or cut != "whole"]))
    return folder


@pytest.fixture(scope="module")
def trained_quickly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quick rows as one batch on one rank, and in two micro batches on each of two; `bitwise` on one and on two."""
    folder = tmp_path_factory.mktemp("quick-grid")
    for ranks, cuts in QUICK_CUTS.items():
        train_table(folder, ranks, grid_table(QUICK, cuts) | {"bitwise": [*EIGHT, *BITWISE_ROWS["adamw"]]})
    return folder


def weights(folder: Path, row: str) -> dict[str, Any]:
    """What the row is about: the weights, or their average."""
    return Run(folder=folder).weights(10, "ema" if row == "averaged" else "model")


def agree(folder: Path, row: str, ranks: int, cut: str) -> bool:
    """Whether the row's weights are those of one batch on one rank."""
    expected = weights(folder / f"{row}-whole" / "1", row)
    learned = weights(folder / f"{row}-{cut}" / str(ranks), row)
    return all((abs(learned[name] - weight) <= 1e-6 + 1e-5 * abs(weight)).all() for name, weight in expected.items())


@pytest.mark.parametrize("row", QUICK)
def test_two_ranks_learn_what_one_batch_on_one_rank_teaches(trained_quickly: Path, row: str) -> None:
    assert agree(trained_quickly, row, 2, "by-12")


@pytest.mark.slow
@pytest.mark.together("same numbers")
@pytest.mark.parametrize("cut", ["by-4", "by-12"])
@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("row", ROWS)
def test_any_number_of_ranks_learns_what_one_batch_on_one_rank_teaches(
    trained: Path, row: str, ranks: int, cut: str
) -> None:
    assert agree(trained, row, ranks, cut)


@pytest.mark.slow
@pytest.mark.together("same numbers")
@pytest.mark.parametrize("row", ROWS)
def test_each_row_teaches_something_of_its_own(trained: Path, row: str) -> None:
    learned = {name: weights(trained / f"{name}-whole" / "1", name) for name in ROWS}
    own = learned.pop(row)
    same = [name for name, other in learned.items() if all((own[key] == other[key]).all() for key in own)]
    assert same == []


@pytest.fixture(scope="module")
def trained_bitwise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """FOLDER/ROW/WORLD_SIZE for every row; all worlds of `resumed` are one run."""
    folder = tmp_path_factory.mktemp("bits")
    (folder / "resumed" / "4").mkdir(parents=True)
    for ranks in (2, 1):
        (folder / "resumed" / str(ranks)).symlink_to("4")
    rows = {row: [*EIGHT, *settings] for row, settings in BITWISE_ROWS.items()}
    for ranks, last in STOPS.items():
        resumed = [*EIGHT, *BITWISE_ROWS["adamw"], f"train.max_steps={last}"]
        train_table(folder, ranks, rows | {"resumed": resumed})
    return folder


def bits(folder: Path) -> dict[str, str]:
    """sha256 of every tensor file after ten steps."""
    files = sorted((folder / "checkpoints" / "step-00000010").glob("*.safetensors"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def record(folder: Path) -> list[tuple[object, ...]]:
    """What every line of training and evaluation says, but for times."""
    events = read_events(folder / METRICS_FILE)
    losses = [event for event in events if event["event"] in ("train", "eval")]
    return [(event["step"], event["loss"], event["accuracy"]) for event in losses]


def test_two_ranks_end_with_the_bits_of_one(trained_quickly: Path) -> None:
    alone = bits(trained_quickly / "bitwise" / "1")
    assert "model.safetensors" in alone
    assert bits(trained_quickly / "bitwise" / "2") == alone


@pytest.mark.slow
@pytest.mark.together("same bits")
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("row", [row for row in BITWISE_ROWS if row != "fast"])
def test_several_ranks_end_with_the_bits_of_one(trained_bitwise: Path, row: str, ranks: int) -> None:
    alone = bits(trained_bitwise / row / "1")
    assert "model.safetensors" in alone
    assert bits(trained_bitwise / row / str(ranks)) == alone


@pytest.mark.slow
@pytest.mark.together("same bits")
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("row", [row for row in BITWISE_ROWS if row != "fast"])
def test_their_record_tells_the_same_numbers(trained_bitwise: Path, row: str, ranks: int) -> None:
    assert record(trained_bitwise / row / str(ranks)) == record(trained_bitwise / row / "1")


@pytest.mark.slow
@pytest.mark.together("same bits")
def test_a_run_that_went_from_four_ranks_to_two_to_one_ends_with_the_same_bits(trained_bitwise: Path) -> None:
    assert bits(trained_bitwise / "resumed" / "4") == bits(trained_bitwise / "adamw" / "1")


@pytest.mark.slow
@pytest.mark.together("same bits")
def test_the_fast_mode_rounds_otherwise_on_four_ranks(trained_bitwise: Path) -> None:
    weights = [Run(folder=trained_bitwise / "fast" / ranks).weights(10) for ranks in ("1", "4")]
    assert any((weights[0][name] != weights[1][name]).any() for name in weights[0])
