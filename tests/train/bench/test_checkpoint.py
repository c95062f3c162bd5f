"""What a checkpoint adds: measured by both sides, and judged from pairs of blocks."""

from __future__ import annotations

from pathlib import Path

import pytest
from benches import quick

from train.bench import checkpoint, paced
from train.bench.paced import Paced


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("saves")


@pytest.fixture(scope="module")
def told(folder: Path) -> dict[str, dict[str, float]]:
    """What our side and the peer tell of a block with a checkpoint: both really save."""
    options = quick(folder)
    with paced.started(options, checkpoint.ours(options), checkpoint.peer(options)) as both:
        return {side.side.name: ask(side) for side in both}


def ask(side: Paced) -> dict[str, float]:
    side.ask(steps=1, save=False)
    return side.ask(steps=2, save=True)


@pytest.mark.parametrize("name", ["saves", "saving"])
def test_a_block_with_a_checkpoint_tells_how_long_it_stood(told: dict[str, dict[str, float]], name: str) -> None:
    assert 0 < told[name]["save_s"] < told[name]["seconds"]


def test_both_leave_their_checkpoints(told: dict[str, dict[str, float]], folder: Path) -> None:
    assert len(list((folder / "saves" / "checkpoints").glob("step-*/manifest.json"))) == 2
    assert len(list((folder / "states").glob("checkpoints/*/model.safetensors"))) == 2


def test_a_fast_save_is_judged_by_the_peers_median() -> None:
    mine = [{"extra_s": extra, "save_s": 0.01} for extra in (0.1, 0.1, 0.4)]
    stock = [{"extra_s": extra, "save_s": 0.2} for extra in (0.5, 0.5, 0.1)]
    rows = checkpoint.judged(mine, stock)
    assert [round(row.found.value, 6) for row in rows.values() if row.found] == [0.2, 0.05]
    assert rows["11a"].facts["save_state_extra_s"] == 0.5


def test_noise_larger_than_a_save_is_no_value() -> None:
    told = [{"extra_s": -0.1, "save_s": 0.2}]
    rows = checkpoint.judged(told, told)
    assert (rows["11a"].found, rows["11b"].found is not None) == (None, True)
