"""One rank of a measured run: our own loop at work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch._dynamo.utils as dynamo
from jobs import TINY, forget_accelerate
from worlds import ALONE

from entrypoint import Heartbeat
from train.bench import rank
from train.config import load


@pytest.fixture(autouse=True)
def _forgotten() -> None:
    forget_accelerate()


def test_without_a_bench_it_trains_to_the_end_and_tells_what_it_was(tmp_path: Path) -> None:
    config = load.load_config(None, [*TINY, "train.max_steps=3"])
    with rank.opened(config, ALONE, {}, tmp_path, Heartbeat()) as trainer:
        rank.led(trainer, None, warm_up=1)
        assert trainer.state.step == 3
        facts = rank.facts(trainer)
    assert (facts["batch"], facts["accumulation"], facts["steps_per_epoch"]) == (8, 2, 4)
    forget_accelerate()


def test_compiling_is_told_by_what_a_cache_saves_and_what_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = {"compile_fx_inner": "6.0", "_compile.compile_inner": "7.0", "backward._backward_impl": "3.0", "gc": "1.0"}
    monkeypatch.setattr(dynamo, "compile_times", lambda **_: (list(spent), list(spent.values())))
    told = rank.compile_parts(12.0)
    assert told == {"compile_code_s": 6.0, "compile_trace_s": 4.0, "compile_rest_s": 2.0}
