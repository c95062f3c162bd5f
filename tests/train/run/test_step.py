"""One optimizer step: where a fault can strike in it. What it computes: test_loop, test_same_numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from jobs import fit, opened

from entrypoint import Pulse
from entrypoint.pulse import Phase, Point
from train import faults


@pytest.mark.parametrize("site", ["step", "data", "fwd", "bwd"])
def test_a_fault_strikes_in_its_step(site: str, tmp_path: Path) -> None:
    with opened(tmp_path) as todo:
        todo.faults.waiting = faults.parse(f"{site}:0:2:oom", 0).waiting
        with pytest.raises(MemoryError):
            fit(todo)
    assert todo.state.step == 2


class Heard(Pulse):
    """Remembers where it was, and at which step."""

    def __init__(self) -> None:
        super().__init__()
        self.beats: list[tuple[str, str, int | None]] = []

    def beat(self, phase: Phase, point: Point = "", *, step: int | None = None) -> None:
        self.beats.append((phase, point, step))


def test_a_rank_says_at_each_point_of_a_step_where_it_is(tmp_path: Path) -> None:
    heard = Heard()
    with opened(tmp_path, "train.max_steps=1", "eval.every_epochs=9") as todo:
        fit(replace(todo, pulse=heard))
    points = [point for phase, point, _ in heard.beats if phase == "step" and point]
    assert points[:6] == ["agreement", *["reads data", "forward", "backward"] * 2][:6]
    assert ("step", "", 1) in heard.beats
    assert {phase for phase, _, _ in heard.beats} == {"step", "evaluation", "save"}
