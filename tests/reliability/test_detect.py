"""A death, a hang and the processes left behind, in the size that CI has time for: see `make detect`."""

from __future__ import annotations

import detect
import pytest


def test_a_rank_of_another_task_that_is_killed_is_named_and_nothing_is_left() -> None:
    trial = detect.death(2, victim=1, apart=True)
    assert (trial.observed, trial.figures["orphans"]) == (69, 0), trial
    assert trial.figures["named_ms"] is not None, trial


def test_a_stopped_rank_is_named_with_the_stacks_of_all() -> None:
    trial = detect.hang(2, victim=1, how="stop")
    assert (trial.observed, trial.figures["stacks"], trial.figures["orphans"]) == (91, True, 0), trial
    assert any("ERROR[91] rank 1 of 2" in line and "is stopped" in line for line in trial.lines), trial


@pytest.mark.parametrize("victim", ["parent", "a data worker"])
def test_nothing_is_left_after_the_death_of_any_process(victim: str) -> None:
    trial = detect.orphans(victim)
    assert trial.ok, trial
