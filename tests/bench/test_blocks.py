"""A training runs in blocks of steps on request."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import torch._dynamo.utils as dynamo
from jobs import TINY, forget_accelerate
from worlds import ALONE

from bench import blocks
from bench.blocks import BlockProgress, Connection, Disconnected
from entrypoint import Heartbeat
from train.build import open_trainer
from train.config import load


class Bench:
    """The other end: asks for what is listed, then hangs up."""

    def __init__(self, *asked: dict[str, object]) -> None:
        self.server, self.asked = socket.create_server(("127.0.0.1", 0)), asked
        self.heard: list[dict[str, object]] = []

    @property
    def address(self) -> str:
        """PORT:TOKEN."""
        return f"{self.server.getsockname()[1]}:secret"

    def talk(self) -> None:
        """Until all was asked."""
        line, _ = self.server.accept()
        with self.server, line, line.makefile("rw") as talk:
            for request in self.asked:
                self.heard.append(json.loads(talk.readline()))
                print(json.dumps(request), file=talk, flush=True)
            self.heard.append(json.loads(talk.readline()))


@pytest.fixture
def heard() -> list[dict[str, object]]:
    """What a bench hears that asks for a block of 3, then for one of 2 with stamps."""
    bench = Bench({"steps": 3}, {"steps": 2, "stamps": True})
    with ThreadPoolExecutor(1) as pool:
        talking = pool.submit(bench.talk)
        graphs = 0
        connection, device = Connection(bench.address), torch.device("cpu")
        progress = BlockProgress(connection, device, {"batch": 8}, warm_up=4, counts=lambda: {"graphs": graphs})
        with suppress(Disconnected):
            for graphs in range(1, 101):  # noqa: B007  # as if each step compiled something
                progress.step()
        talking.result(timeout=60)
    return bench.heard


def test_first_it_says_who_it_is_and_what_it_trains(heard: list[dict[str, object]]) -> None:
    assert heard[0]["token"] == "secret"
    assert heard[0]["batch"] == 8
    assert "first_step_s" in heard[0]


def test_it_does_as_many_steps_as_were_asked_for_after_the_warm_up(heard: list[dict[str, object]]) -> None:
    assert [answer["last"] for answer in heard[1:]] == [4 + 3, 4 + 3 + 2]


def test_it_tells_each_step_only_where_that_was_on_cpu(heard: list[dict[str, object]]) -> None:
    assert heard[1]["stamps"] == []
    assert len(heard[2]["stamps"]) == 2  # type: ignore[arg-type]


def test_it_counts_from_after_the_first_step_so_that_the_warm_up_shows(heard: list[dict[str, object]]) -> None:
    assert [answer["graphs"] for answer in heard] == [1, 4 + 3, 4 + 3 + 2]


@pytest.fixture
def _forgotten() -> Iterator[None]:
    forget_accelerate()
    yield
    forget_accelerate()


@pytest.mark.usefixtures("_forgotten")
def test_without_a_bench_it_trains_to_the_end_and_tells_what_it_was(tmp_path: Path) -> None:
    config = load.load_config(None, [*TINY, "train.max_steps=3"])
    with open_trainer(config, ALONE, {}, tmp_path, Heartbeat()) as trainer:
        blocks.train_in_blocks(trainer, None, warm_up=1)
        assert trainer.state.step == 3
        facts = blocks.describe_training(trainer)
    assert (facts["batch"], facts["accumulation"], facts["steps_per_epoch"]) == (8, 2, 4)


def test_compiling_is_told_by_what_a_cache_saves_and_what_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = {"compile_fx_inner": "6.0", "_compile.compile_inner": "7.0", "backward._backward_impl": "3.0", "gc": "1.0"}
    monkeypatch.setattr(dynamo, "compile_times", lambda **_: (list(spent), list(spent.values())))
    seconds = blocks.split_compile_time(12.0)
    assert seconds == {"compile_code_s": 6.0, "compile_trace_s": 4.0, "compile_rest_s": 2.0}
