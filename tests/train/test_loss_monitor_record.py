"""Which steps and losses errors/diverged.json tells of, and which files."""

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


@pytest.mark.parametrize(
    ("step", "every", "steps"), [(0, 5, []), (3, 5, [0, 1, 2]), (5, 5, [0, 1, 2, 3, 4]), (6, 5, [5]), (7, 1, [6])]
)
def test_the_steps_since_the_log_point_before(step: int, every: int, steps: list[int]) -> None:
    assert list(loss_monitor.steps_since_log_point(step, every)) == steps


@pytest.mark.parametrize(
    ("losses", "takes", "found"),
    [
        ([1, 3, 2, 4, 5, 7], 2, {5: 2, 6: 3, 7: 6}),
        ([2, 4, 5, 7], 2, {6: 3, 7: 6}),
        ([1, 2, 4, 5, 7], 2, {6: 3, 7: 6}),
        ([9, 1, 2, 3], 1, {5: 1, 6: 2, 7: 3}),
        ([], 2, {}),
    ],
    ids=["all", "after-a-restart", "cut-off", "more", "none"],
)
def test_the_last_losses_belong_to_the_last_steps(losses: list[float], takes: int, found: dict[int, float]) -> None:
    assert loss_monitor.losses_by_step(losses, [5, 6, 7], takes) == found


@pytest.mark.parametrize(
    ("losses", "found"),
    [
        ([], range(950, 1000)),
        ([{500: math.nan}, {20: 1.0, 480: math.inf}], range(430, 530)),
        ([{3: math.nan}], range(100)),
        ([{990: math.nan}], range(940, 1000)),
    ],
    ids=["unknown", "the-first-of-two", "early", "late"],
)
def test_of_many_steps_those_around_the_first_bad_one_are_listed(losses: list[dict[int, float]], found: range) -> None:
    assert loss_monitor.listed_steps(range(1000), losses) == found


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
    found = diverged(tmp_path, *own)
    bad = found["batches"][found["first_bad_step"] - 3]
    assert (found["first_bad_step"], bad["step"], bad["loss"]) == (4, 4, None)
    assert [Path(path).is_file() for path in found["files"].values()] == [True] * 16
    assert [*map(int, found["files"])] == bad["samples"]


def test_drawn_images_have_numbers_only(tmp_path: Path) -> None:
    found = diverged(tmp_path)
    assert found["files"] == {}
    assert [len(batch["samples"]) for batch in found["batches"]] == [16, 16]
    assert math.isfinite(found["batches"][0]["loss"])
