"""One rank of a measured run: our own loop at work."""

from __future__ import annotations

from pathlib import Path

import pytest
from jobs import TINY, forget_accelerate
from worlds import ALONE

from entrypoint import Pulse
from train.bench import rank
from train.settings import schema


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    forget_accelerate()


def test_without_a_bench_it_trains_to_the_end_and_tells_what_it_was(tmp_path: Path) -> None:
    config = schema.load(None, [*TINY, "train.max_steps=3"])
    with rank.opened(config, ALONE, {}, tmp_path, Pulse()) as todo:
        rank.led(todo, None, warm_up=1)
        assert todo.state.step == 3
        facts = rank.facts(todo)
    assert (facts["batch"], facts["accumulation"], facts["steps_per_epoch"]) == (8, 2, 4)
    forget_accelerate()
