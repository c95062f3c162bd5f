"""How long a start takes beside others' is measured by starting: what is started, and what comes of the times."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from benches import by_number, quick

from bench import harness, start


@pytest.mark.slow
def test_both_sides_come_to_their_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Really, but for the launcher of the other side, and once."""
    monkeypatch.setattr(start, "accelerate_launch", lambda options: harness.peer_command(options, "first_step"))
    monkeypatch.setattr(harness, "time_in_turns", partial(harness.time_in_turns, warm_up=0))
    monkeypatch.setattr(start, "_seconds", lambda words, options: 1.0)
    facts = start.first_step(quick(tmp_path, pairs=1)).facts
    assert facts["ours_s"] > 0
    assert facts["accelerate_launch_s"] > 0


def test_the_front_door_is_timed_alone_and_beside_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(start, "run_to_end", lambda words, environ, cwd: commands.append(list(words)))
    rows = by_number(list(start.front_door(quick(tmp_path))))
    assert set(rows) == {"9", "9b"}
    assert commands[0][1:4] == ["show", "--device", "cpu"]
    assert any(words[-1].endswith("empty.py") for words in commands)


def test_an_image_has_a_size(tmp_path: Path) -> None:
    sif = tmp_path / "train.sif"
    with sif.open("wb") as file:
        file.truncate(3_600_000_000)
    row = start.image_size(quick(tmp_path, arguments={"sif": str(sif)}))
    assert row.estimate is not None
    assert (row.estimate.value, row.is_reached) == (3.6, False)


def test_without_an_image_its_size_is_not_measured(tmp_path: Path) -> None:
    assert (
        start.image_size(quick(tmp_path)).missing
        == "needs an image: make sif, then python -m bench start --sif train.sif"
    )


def test_a_measured_start_sees_no_modules_of_the_caller_and_may_keep_what_it_compiled(tmp_path: Path) -> None:
    unusual = {"PYTHONPATH": "/mine", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/"}
    assert start.user_environ(quick(tmp_path, environ=unusual)) == {"HOME": "/"}
