"""The table of what may be trained, on 1, 2 and 4 ranks: the same weights after ten steps, in real process groups."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from processes import python, unmeasured
from runs import Run

from train.config import schema

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


def train_all(place: Path, rows: Iterable[str], worlds: Iterable[int]) -> Path:
    """Trains FOLDER/ROW-CUT/WORLD_SIZE for each row; the whole batch on one rank only."""
    script = Path(__file__).parents[1] / "support" / "grid.py"
    for ranks in worlds:
        table = {f"{r}-{c}": [SMOOTH, *ROWS[r], *CUTS[c]] for r in rows for c in CUTS if ranks == 1 or c != "whole"}
        (place / "grid.json").write_text(json.dumps(table))
        launch = ["-m", "entrypoint", "run", "--device", "cpu", "--procs-per-node", str(ranks), "--"]
        ended = python(*launch, sys.executable, str(script), str(place), cwd=place, env=unmeasured(), timeout=600)
        assert ended.returncode == 0, ended.stderr[-2000:] + ended.stdout[-2000:]
    return place


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every row in every world."""
    return train_all(tmp_path_factory.mktemp("grid"), ROWS, WORLDS)


@pytest.fixture(scope="module")
def trained_quickly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The quick rows on one and two ranks."""
    return train_all(tmp_path_factory.mktemp("quick-grid"), QUICK, (1, 2))


def weights(folder: Path, row: str) -> dict[str, Any]:
    """What the row is about: the weights, or their average."""
    return Run(folder=folder).weights(10, "ema" if row == "averaged" else "model")


def agree(folder: Path, row: str, ranks: int, cut: str) -> bool:
    """Whether the row's weights are those of one batch on one rank."""
    expected = weights(folder / f"{row}-whole" / "1", row)
    found = weights(folder / f"{row}-{cut}" / str(ranks), row)
    return all((abs(found[name] - weight) <= 1e-6 + 1e-5 * abs(weight)).all() for name, weight in expected.items())


@pytest.mark.parametrize("cut", ["by-4", "by-12"])
@pytest.mark.parametrize("row", QUICK)
def test_two_ranks_learn_what_one_batch_on_one_rank_teaches(trained_quickly: Path, row: str, cut: str) -> None:
    assert agree(trained_quickly, row, 1, cut)
    assert agree(trained_quickly, row, 2, cut)


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
    mine = learned.pop(row)
    same = [name for name, theirs in learned.items() if all((mine[key] == theirs[key]).all() for key in mine)]
    assert same == []
