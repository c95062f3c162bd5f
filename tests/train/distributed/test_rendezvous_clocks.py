"""Nodes whose clocks differ are named, and nothing else comes of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen

import pytest
from processes import free_port, start_python
from runs import TEN_STEPS

from train.distributed.rendezvous import ClockReading, clock_skew_warnings

FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)  # Debian's libfaketime


def told(*seconds: float, nodes: Sequence[int] = (0, 1, 2, 3)) -> tuple[str, ...]:
    readings = [ClockReading(node=n, host=f"node{n}", seconds=s) for n, s in zip(nodes, seconds, strict=False)]
    return clock_skew_warnings(readings)


@pytest.mark.parametrize("seconds", [(5.0,), (5.0, 5.0), (5.0, 6.9, 3.1)])
def test_two_seconds_are_nothing(seconds: Sequence[float]) -> None:
    assert told(*seconds) == ()


def test_who_is_ahead_and_who_behind_is_named_on_one_line() -> None:
    (line,) = told(100.0, 160.0, 100.5, 40.0)
    assert line.startswith("clocks differ: node1 is 60.0 s ahead of node0, node3 is 60.0 s behind node0; ")


def test_a_node_is_named_once() -> None:
    (line,) = told(100.0, 100.0, 160.0, 160.0, nodes=(0, 0, 1, 1))
    assert line.count("node1") == 1


def started(folder: Path, node: int, port: int, **environ: str) -> Popen[str]:
    place = ("--nodes", "2", "--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port))
    words = ("-m", "train", "--config", "ten.yaml", "--device", "cpu", *place, "train.max_steps=3")
    return start_python(*words, cwd=folder, environ=environ)


@pytest.mark.skipif(FAKETIME is None, reason="machine: libfaketime is not installed")
def test_a_clock_that_is_an_hour_ahead_is_said_and_the_run_ends_well(tmp_path: Path) -> None:
    (tmp_path / "ten.yaml").write_text(TEN_STEPS)
    # Both of its clocks: with the wall clock alone, a wait until a moment lasts an hour now and then.
    fake = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": "+3600s"}
    port = free_port()
    with started(tmp_path, 0, port) as first, started(tmp_path, 1, port, **fake) as second:
        try:
            said, other = first.communicate(timeout=200)[0], second.communicate(timeout=60)[0]
        finally:
            first.kill()
            second.kill()
    assert (first.returncode, second.returncode) == (0, 0), said + other
    found = re.search(r"clocks differ: \S+ is ([\d.]+) s ahead of ", said)
    assert found, said
    assert float(found[1]) == pytest.approx(3600, abs=60)
