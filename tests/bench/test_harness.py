"""Ours and a peer run in turns with the same work."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from benches import quick

from bench import __main__ as command
from bench import harness, step
from bench.harness import Pairs
from bench.processes import PEERS
from bench.training import REFERENCE, SMALL, Workload
from entrypoint import ExitCode
from train.config import load


def test_sides_take_turns_and_every_second_pair_begins_with_the_peer() -> None:
    called: list[str] = []

    def side(name: str) -> float:
        called.append(name)
        return 1.0

    harness.time_in_turns(lambda: side("a"), lambda: side("b"), pairs=3, warm_up=1)
    assert "".join(called) == "abbaabba"


def test_the_warm_up_does_not_count() -> None:
    times = iter([100.0, 1.0, 2.0, 3.0])
    pairs = harness.time_in_turns(lambda: next(times), lambda: 1.0, pairs=2, warm_up=2)
    assert pairs.ours == (2.0, 3.0)


def test_a_ratio_is_of_each_pair_so_that_what_slows_both_does_not_count() -> None:
    pairs = Pairs(ours=(1.0, 10.0, 100.0), peer=(2.0, 20.0, 200.0))
    assert pairs.speed_ratio().value == 2.0
    assert pairs.time_ratio().value == 0.5
    assert (pairs.speed_ratio().low, pairs.speed_ratio().high) == (2.0, 2.0)


def test_a_difference_is_in_the_requested_unit() -> None:
    assert Pairs(ours=(3.0,), peer=(1.0,)).difference(1e6).value == 2e6


def test_the_projects_peers_are_used_unless_others_are_named(tmp_path: Path) -> None:
    parser = command.build_parser(command.BENCH, "step", {})
    assert parser.parse_args([]).peers == PEERS
    assert parser.parse_args(["--peers", str(tmp_path)]).peers == tmp_path
    assert harness.peer_command(quick(tmp_path, peers=tmp_path), "bare")[1] == str(tmp_path / "bare.py")
    assert Path(harness.peer_command(quick(tmp_path), "bare")[1]).is_file()


def test_peers_that_do_not_exist_are_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(["step", "--peers", "none", "--device", "cpu"], {}) == ExitCode.NO_INPUT
    assert "no folder none" in capsys.readouterr().err


WORKLOADS = {
    "reference": REFERENCE,
    "compiled": replace(REFERENCE, compile="default"),
    "small": SMALL,
    "loop": step.LOOP,
    "epochs": step.EPOCHS,
    "two processes": step.TWO_PROCESSES,
}


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
def test_both_sides_get_the_same_work(workload: Workload) -> None:
    config, words = load.load_config(None, workload.settings()), harness.bare_arguments(workload)
    values = dict(pairwise(words))
    assert values["--batch"] == str(config.train.global_batch_size)
    assert values["--samples"] == str(config.data.samples)
    assert values["--precision"] == config.train.precision
    assert ("--augment" in words) == (config.data.augment == "standard")
    assert ("--compile" in words) == (config.train.compile == "default")


def test_each_process_has_the_batch_of_one() -> None:
    config = load.load_config(None, step.TWO_PROCESSES.settings(procs=2))
    assert config.train.global_batch_size == 2 * step.TWO_PROCESSES.batch
    assert config.train.micro_batch_size == step.TWO_PROCESSES.batch
