"""Which losses are a jump (ten times what was usual, worse than guessing), and what errors/diverged.json tells."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from jobs import built
from PIL import Image

from entrypoint import Failure
from train import fault_injection, loss_monitor
from train.loss_monitor import RecentLosses

CURVES = {
    "falls": [2.3 * 0.9**k for k in range(80)],
    "rises-with-warm-up": [2.3, 2.4, 3.0, 4.5, 6.0, 9.0, 7.0, 3.0, 2.2],
    "near-zero-and-noisy": [1e-3, 2e-4, 1e-3, 3e-4, 1e-3, 0.4, 1e-3, 1.9],
    "first-readings": [0.1, 500.0],
}


def jumps(losses: list[float], classes: int = 10) -> list[int]:
    recent = RecentLosses(classes)
    return [step for step, loss in enumerate(losses) if recent.add(step, loss)]


@pytest.mark.parametrize("losses", CURVES.values(), ids=CURVES)
def test_what_trainings_do_is_no_jump(losses: list[float]) -> None:
    assert jumps(losses) == []


def test_a_jump_is_told_once_and_the_next_one_again() -> None:
    assert jumps([2.0] * 6 + [50.0] * 3 + [2.0] + [60.0]) == [6, 10]


def test_what_was_usual_is_not_what_jumped() -> None:
    recent = RecentLosses(10)
    for step in range(6):
        recent.add(step, 2.0)
    for step in range(6, 40):
        recent.add(step, 50.0)
    jump = recent.find_jump(40, 50.0)
    assert jump is not None
    assert (jump.usual, jump.step) == (2.0, 40)


def test_a_loss_that_is_not_finite_is_not_remembered() -> None:
    assert jumps([2.0, 2.0, math.inf, 2.0, math.nan, 2.0, 2.0, 30.0]) == [7]


def test_an_infinite_loss_is_no_jump_but_the_matter_of_fp16s_scaler() -> None:
    assert jumps([2.0] * 6 + [math.inf, 2.0]) == []


@pytest.mark.parametrize(("classes", "expected"), [(10, [5]), (1000, [])])
def test_a_jump_is_worse_than_guessing(classes: int, expected: list[int]) -> None:
    assert jumps([0.2] * 5 + [4.0], classes) == expected


@pytest.mark.parametrize(
    ("step", "every", "steps"), [(0, 5, []), (3, 5, [0, 1, 2]), (5, 5, [0, 1, 2, 3, 4]), (6, 5, [5]), (7, 1, [6])]
)
def test_the_steps_since_the_log_point_before(step: int, every: int, steps: list[int]) -> None:
    assert list(loss_monitor.steps_since_log_point(step, every)) == steps


@pytest.mark.parametrize(
    ("losses", "takes", "expected"),
    [
        ([1, 3, 2, 4, 5, 7], 2, {5: 2, 6: 3, 7: 6}),
        ([2, 4, 5, 7], 2, {6: 3, 7: 6}),
        ([1, 2, 4, 5, 7], 2, {6: 3, 7: 6}),
        ([9, 1, 2, 3], 1, {5: 1, 6: 2, 7: 3}),
        ([], 2, {}),
    ],
    ids=["all", "after-a-restart", "cut-off", "more", "none"],
)
def test_the_last_losses_belong_to_the_last_steps(losses: list[float], takes: int, expected: dict[int, float]) -> None:
    assert loss_monitor.losses_by_step(losses, [5, 6, 7], takes) == expected


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([], range(950, 1000)),
        ([{500: math.nan}, {20: 1.0, 480: math.inf}], range(430, 530)),
        ([{3: math.nan}], range(100)),
        ([{990: math.nan}], range(940, 1000)),
    ],
    ids=["unknown", "the-first-of-two", "early", "late"],
)
def test_of_many_steps_those_around_the_first_bad_one_are_listed(
    losses: list[dict[int, float]], expected: range
) -> None:
    assert loss_monitor.listed_steps(range(1000), losses) == expected


def images(folder: Path) -> Path:
    for number in range(80):
        path = folder / "data" / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, number, number)).save(path)
    return folder / "data"


def diverged(folder: Path, *settings: str) -> dict[str, Any]:
    with built(folder / "run", *settings) as trainer:
        trainer.faults = fault_injection.parse_faults("loss:0:3:nan", 0)
        with pytest.raises(Failure, match="diverged"):
            trainer.fit()
    return json.loads((folder / "run/errors/diverged.json").read_text())  # type: ignore[no-any-return]


def test_the_files_of_the_first_bad_step_are_named(tmp_path: Path) -> None:
    own = ("data.name=folder", f"data.root={images(tmp_path)}", "data.classes=2")
    record = diverged(tmp_path, *own)
    bad = record["batches"][record["first_bad_step"] - 3]
    assert (record["first_bad_step"], bad["step"], bad["loss"]) == (4, 4, None)
    assert [Path(path).is_file() for path in record["files"].values()] == [True] * 16
    assert [*map(int, record["files"])] == bad["samples"]


def test_drawn_images_have_numbers_only(tmp_path: Path) -> None:
    record = diverged(tmp_path)
    assert record["files"] == {}
    assert [len(batch["samples"]) for batch in record["batches"]] == [16, 16]
    assert math.isfinite(record["batches"][0]["loss"])
