"""Sides of a comparison that take turns: real processes, ours and a peer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from processes import alive, unmeasured, wait_until

from entrypoint import ExitCode, Failure
from entrypoint import LaunchOptions as Launch
from train.bench import options, paced
from train.bench.options import Options
from train.bench.paced import Paced, Side

TINY = ("--model", "tiny", "--size", "8", "--classes", "2", "--samples", "64", "--batch", "8", "--warm-up", "2")
OURS = (
    "data.name=train.bench.noise:images",
    "data.samples=64",
    "data.image_size=8",
    "data.classes=2",
    "model.name=workload:tiny",
    "train.global_batch_size=8",
    "train.epochs=1000",
    "eval.every_epochs=1000",
)
# A peer that tells its pid and then answers.
TALKS = """
import json, os, socket, sys
port, _, token = sys.argv[-1].partition(":")
talk = socket.create_connection(("127.0.0.1", int(port))).makefile("rw")
print(json.dumps({"token": token, "pid": os.getpid()}), file=talk, flush=True)
for line in talk:
    print(json.dumps({"seconds": 2.0 * json.loads(line)["steps"], "cpu": 0.0}), file=talk, flush=True)
"""


def asked(folder: Path) -> Options:
    """A bench on the CPU."""
    peers, environ = options.find_peers(None), unmeasured()
    return Options(device="cpu", launch=Launch(), scratch=folder, peers=peers, environ=environ, tell=lambda line: None)


def python(code: str, **more: str) -> Side:
    """A side that runs this code."""
    return Side(name="side", command=[sys.executable, "-c", code], environ=unmeasured() | more)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Paced]]:
    """Our own training and the bare loop, both on two ranks, waiting."""
    with_files = asked(tmp_path_factory.mktemp("pair"))
    sides = paced.ours(with_files, "ours", *OURS, procs=2), paced.peer(with_files, "bare", *TINY, ranks=2)
    with paced.started(with_files, *sides) as both:
        yield both


@pytest.mark.slow
def test_both_train_the_same_number_of_ranks_and_images(pair: list[Paced]) -> None:
    ours, bare = pair
    assert ours.facts["ranks"] == bare.facts["ranks"] == 2
    assert ours.facts["batch"] * 2 == bare.facts["batch"]


@pytest.mark.parametrize("which", [0, 1], ids=["ours", "bare"])
def test_each_does_its_block_when_it_is_told_to(pair: list[Paced], which: int) -> None:
    pair[which].steps = 3
    assert pair[which].block() > 0


def test_ours_tells_how_long_each_step_took(pair: list[Paced]) -> None:
    told = pair[0].ask(steps=4, stamps=True)
    assert len(told["stamps"]) == 4
    assert sum(told["stamps"]) <= told["seconds"]


def test_the_time_of_a_block_is_told_by_step(tmp_path: Path) -> None:
    with paced.started(asked(tmp_path), python(TALKS)) as (side,):
        side.steps = 5
        assert side.block() == 2.0
        assert side.fit_to(8.0) == 4


def test_at_the_end_all_processes_are_gone(tmp_path: Path) -> None:
    with paced.started(asked(tmp_path), python(TALKS)) as (side,):
        pid = side.facts["pid"]
        assert alive(pid)
    wait_until(lambda: not alive(pid), "the side is gone")


def test_a_side_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="side") as failed, paced.started(asked(tmp_path), python("1/0")):
        pass
    assert failed.value.code == ExitCode.PEER
    assert "ZeroDivisionError" in str(failed.value)


def test_on_a_gpu_which_is_not_had_for_long_less_is_waited(tmp_path: Path) -> None:
    on_cpu = asked(tmp_path)
    on_gpu = replace(on_cpu, device="cuda")
    assert paced._limit(on_gpu) < paced._limit(on_cpu) == paced._limit(replace(on_gpu, config="cfg.yaml"))


SILENT = TALKS.partition("for line in talk")[0] + "import time; time.sleep(600)"


@pytest.mark.parametrize(("code", "why"), [("import time; time.sleep(600)", "no word in 2 s"), (SILENT, "timed out")])
def test_a_side_that_hangs_is_given_up_with_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, why: str
) -> None:
    monkeypatch.setattr(paced, "LONGEST_S", 2.0)
    with pytest.raises(Failure, match=why) as failed, paced.started(asked(tmp_path), python(code)) as (side,):
        side.block()
    assert failed.value.code == ExitCode.PEER


def test_a_script_that_runs_alone_is_read_from_its_last_line(tmp_path: Path) -> None:
    assert paced.one_json(python("print('note'); print('{\"step_s\": [1.0]}')"), tmp_path) == {"step_s": [1.0]}


def test_a_script_that_fails_alone_is_told(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no luck"):
        paced.one_json(python("raise SystemExit('no luck')"), tmp_path)
