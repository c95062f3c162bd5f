"""TensorBoard itself reads what is written, and shows each step once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from train.logging.tensorboard import TensorBoardWriter


def shown(folder: Path) -> dict[str, list[tuple[int, float]]]:
    reader: Any = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {tag: [(at.step, at.value) for at in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def start(folder: Path, *steps: int, step: int = 0, value: float = 1.0, now: float = 0.0) -> None:
    """A start that goes on after `step` and writes these."""
    curves = TensorBoardWriter(folder, step=step, wall_time=now)
    for at in steps:
        curves.write({"train/loss": value}, step=at, wall_time=now)
    curves.close()


def test_points_are_shown(tmp_path: Path) -> None:
    start(tmp_path, 10, 20, value=0.5)
    assert shown(tmp_path) == {"train/loss": [(10, 0.5), (20, 0.5)]}


@pytest.mark.parametrize("now", [100.0, -100.0], ids=["later", "on a node whose clock is behind"])
def test_steps_computed_again_are_shown_once(tmp_path: Path, now: float) -> None:
    start(tmp_path, 10, 20, 30)
    start(tmp_path, 20, 30, step=10, value=2.0, now=now)
    assert shown(tmp_path) == {"train/loss": [(10, 1.0), (20, 2.0), (30, 2.0)]}


def test_points_are_on_the_disk_before_the_file_is_closed(tmp_path: Path) -> None:
    curves = TensorBoardWriter(tmp_path, step=0, wall_time=0.0)
    curves.write({"train/loss": 1.0}, step=10, wall_time=0.0)
    assert shown(tmp_path) == {"train/loss": [(10, 1.0)]}
    curves.close()


def test_a_new_file_never_takes_the_name_of_another(tmp_path: Path) -> None:
    start(tmp_path, 10)
    start(tmp_path, 20, step=10)
    (tmp_path / "events.out.tfevents.000000").unlink()
    start(tmp_path, 30, step=20)
    assert sorted(path.name[-6:] for path in tmp_path.iterdir()) == ["000001", "000002"]
