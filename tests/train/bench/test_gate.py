"""The gate in our loop: blocks of steps as they are asked for."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import torch

from train.bench.gate import Gate, Line, Over


class Bench:
    """The other end: asks for what is listed, then hangs up."""

    def __init__(self, *asked: dict[str, object]) -> None:
        self.server, self.asked = socket.create_server(("127.0.0.1", 0)), asked
        self.heard: list[dict[str, object]] = []

    @property
    def place(self) -> str:
        """PORT:TOKEN."""
        return f"{self.server.getsockname()[1]}:secret"

    def talk(self) -> None:
        """Until all was asked."""
        line, _ = self.server.accept()
        with self.server, line, line.makefile("rw") as talk:
            for wanted in self.asked:
                self.heard.append(json.loads(talk.readline()))
                print(json.dumps(wanted), file=talk, flush=True)
            self.heard.append(json.loads(talk.readline()))


@pytest.fixture
def heard() -> list[dict[str, object]]:
    """What a bench hears that asks for a block of 3, then for one of 2 with stamps."""
    bench = Bench({"steps": 3}, {"steps": 2, "stamps": True})
    with ThreadPoolExecutor(1) as pool:
        talking = pool.submit(bench.talk)
        graphs = 0
        line, device = Line(bench.place), torch.device("cpu")
        gate = Gate(line, device, {"batch": 8}, warm_up=4, counts=lambda: {"graphs": graphs})
        with suppress(Over):
            for graphs in range(1, 101):  # noqa: B007  # as if each step compiled something
                gate.step()
        talking.result(timeout=60)
    return bench.heard


def test_first_it_says_who_it_is_and_what_it_trains(heard: list[dict[str, object]]) -> None:
    assert heard[0]["token"] == "secret"
    assert heard[0]["batch"] == 8
    assert "first_step_s" in heard[0]


def test_it_does_as_many_steps_as_were_asked_for_after_the_warm_up(heard: list[dict[str, object]]) -> None:
    assert [told["last"] for told in heard[1:]] == [4 + 3, 4 + 3 + 2]


def test_it_tells_each_step_only_where_that_was_asked(heard: list[dict[str, object]]) -> None:
    assert heard[1]["stamps"] == []
    assert len(heard[2]["stamps"]) == 2  # type: ignore[arg-type]


def test_it_counts_from_after_the_first_step_so_that_the_warm_up_shows(heard: list[dict[str, object]]) -> None:
    assert [told["graphs"] for told in heard] == [1, 4 + 3, 4 + 3 + 2]
