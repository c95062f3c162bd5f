"""A rank's sign of life, written and read in one process, and handed down to another."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys

import pytest
from processes import TIMEOUT_S

from entrypoint.heartbeat import HEARTBEAT_VARIABLE, PAGE_SIZE_BYTES, Heartbeat, HeartbeatChannel, attach_heartbeat

ATTACHED = """
import os
from entrypoint.heartbeat import attach_heartbeat
attach_heartbeat(os.environ).beat("save", step=7)
"""


@pytest.fixture
def line() -> HeartbeatChannel:
    return HeartbeatChannel()


@pytest.fixture
def pulse(line: HeartbeatChannel) -> Heartbeat:
    return Heartbeat(mmap.mmap(line.page, PAGE_SIZE_BYTES))


def test_a_rank_that_has_not_come_up_has_no_beat(line: HeartbeatChannel) -> None:
    assert line.read() is None


def test_the_last_beat_is_read(line: HeartbeatChannel, pulse: Heartbeat) -> None:
    pulse.beat("start")
    pulse.beat("step", "forward", step=812)
    beat = line.read()
    assert beat is not None
    assert (beat.number, beat.phase, beat.point, beat.step) == (2, "step", "forward", 812)


def test_where_in_a_step_a_rank_is_may_be_said_between_two_beats(line: HeartbeatChannel, pulse: Heartbeat) -> None:
    pulse.beat("step", "reads data", step=812)
    pulse.at("backward")
    beat = line.read()
    assert beat is not None
    assert (beat.number, beat.phase, beat.point, beat.step) == (1, "step", "backward", 812)


def test_a_beat_that_is_half_written_counts_as_the_one_before(line: HeartbeatChannel, pulse: Heartbeat) -> None:
    pulse.beat("step", step=1)
    before = line.read()
    os.pwrite(line.page, (2).to_bytes(8, "little"), 0)
    assert line.read() == before


def test_micro_batches_are_counted_within_a_step(line: HeartbeatChannel, pulse: Heartbeat) -> None:
    for step in (3, 3, 4):
        pulse.beat("step", "reads data", step=step)
    assert line.read().micro == 1  # type: ignore[union-attr]


@pytest.mark.parametrize(("steps", "warm"), [((5,), False), ((5, 6), True)])
def test_a_start_is_warm_once_it_has_finished_a_step(
    line: HeartbeatChannel, pulse: Heartbeat, steps: tuple[int, ...], warm: bool
) -> None:
    for step in steps:
        pulse.beat("step", step=step)
    assert line.read().warm is warm  # type: ignore[union-attr]


def test_each_item_is_a_beat(line: HeartbeatChannel, pulse: Heartbeat) -> None:
    assert list(pulse.each("data", "abc")) == ["a", "b", "c"]
    assert line.read().number == 4  # type: ignore[union-attr]


@pytest.mark.parametrize("value", ["", "x:y", "9999:9998"])
def test_without_a_parent_that_listens_nothing_is_written(value: str) -> None:
    attach_heartbeat({HEARTBEAT_VARIABLE: value}).beat("step", "forward", step=1)


def test_a_process_that_was_handed_the_page_writes_to_it(line: HeartbeatChannel) -> None:
    environ = {**os.environ, HEARTBEAT_VARIABLE: line.variable}
    subprocess.run([sys.executable, "-c", ATTACHED], env=environ, pass_fds=(line.page, line.stacks), timeout=TIMEOUT_S)
    beat = line.read()
    assert beat is not None
    assert (beat.phase, beat.step) == ("save", 7)
