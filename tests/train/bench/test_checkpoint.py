"""What a checkpoint adds: measured by both sides, and judged from pairs of blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from benches import quick

from train.bench import checkpoint, paced
from train.bench.options import Options
from train.bench.paced import Paced, Side
from train.bench.rows import Row


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


def test_each_side_goes_first_in_turns_and_so_does_the_block_with_the_checkpoint() -> None:
    asked: list[str] = []

    def side(name: str) -> Paced:
        def ask(*, steps: int, save: bool) -> dict[str, float]:
            asked.append(f"{name}{'+' if save else '-'}")
            return {"seconds": 1.0, "save_s": 0.5}

        return cast(Paced, SimpleNamespace(steps=3, ask=ask))

    mine, stock = side("m"), side("s")
    for number in range(4):
        checkpoint._pair(mine, stock, number)
    assert "".join(asked) == "m+m-s+s-" + "s+s-m+m-" + "m-m+s-s+" + "s-s+m-m+"


def test_both_circumstances_are_told_and_each_row_has_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def blocks(options: Options, variables: dict[str, str], asked: int) -> tuple[checkpoint.Told, checkpoint.Told]:
        threads = float(variables["OMP_NUM_THREADS"])
        return [{"extra_s": threads, "save_s": threads, "copy_s": 0.1}], [{"extra_s": 1.0, "save_s": 1.0}]

    monkeypatch.setattr(checkpoint, "_blocks", blocks)
    monkeypatch.setattr(checkpoint, "num_usable_cores", lambda: 4)
    rows = [row for row in checkpoint.run(quick(tmp_path)) if isinstance(row, Row)]
    found = {row.number: row.found.value for row in rows if row.found}
    assert found == {"11a": 3.0, "11b": 4.0, "11a, all cores at work": 4.0, "11b, one core free": 3.0}


def test_each_circumstance_has_folders_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders: list[str] = []

    @contextmanager
    def started(options: Options, *sides: Side) -> Iterator[list[Paced]]:
        folders.extend(side.command[list(side.command).index("--folder") + 1] for side in sides)
        ask = {"seconds": 1.0, "save_s": 0.5, "copy_s": 0.1}
        yield [cast(Paced, SimpleNamespace(steps=1, ask=lambda **wanted: ask)) for _ in sides]

    monkeypatch.setattr(paced, "started", started)
    monkeypatch.setattr(checkpoint, "num_usable_cores", lambda: 2)
    assert len(list(checkpoint.run(quick(tmp_path)))) == 4
    assert len(set(folders)) == 4


def test_a_fast_save_is_judged_by_the_peers_median() -> None:
    mine = [{"extra_s": extra, "save_s": 0.01, "copy_s": 0.005} for extra in (0.1, 0.1, 0.4)]
    stock = [{"extra_s": extra, "save_s": 0.2} for extra in (0.5, 0.5, 0.1)]
    rows = checkpoint.judged(mine, stock)
    assert [round(row.found.value, 6) for row in rows.values() if row.found] == [0.2, 0.05]
    assert rows["11a"].facts["save_state_extra_s"] == 0.5
    assert rows["11b"].facts["copy_s"] == 0.005


def test_noise_larger_than_a_save_is_no_value() -> None:
    told = [{"extra_s": -0.1, "save_s": 0.2, "copy_s": 0.1}]
    rows = checkpoint.judged(told, told)
    assert (rows["11a"].found, rows["11b"].found is not None) == (None, True)
