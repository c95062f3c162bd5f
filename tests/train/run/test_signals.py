"""Signals only set a flag, and only a second Ctrl-C ends the process at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from entrypoint import SIGNAL_REPEAT_WINDOW_S
from train.run.signals import Received, Watch

TERM, INT, USR1, USR2 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def delivered(*events: tuple[float, signal.Signals]) -> tuple[Received | None, list[int]]:
    """What is received after each signal came at its time, and the codes that the process would have ended with."""
    clock, aborted = Clock(), list[int]()
    watch = Watch(clock=clock, abort=aborted.append)
    for clock.now, number in events:
        watch.handle(number)
    return watch.received, aborted


@pytest.mark.parametrize("number", [TERM, INT, USR1, USR2])
def test_a_real_signal_sets_the_flag_and_nothing_else(number: signal.Signals) -> None:
    with Watch(clock=lambda: 7.0) as watch:
        os.kill(os.getpid(), number)
    assert watch.received == Received(name=number.name, at=7.0)


def test_nothing_is_received_before_a_signal_came() -> None:
    assert delivered() == (None, [])


def test_the_first_signal_is_the_cause() -> None:
    assert delivered((1.0, USR1), (5.0, TERM))[0] == Received(name="SIGUSR1", at=1.0)


@pytest.mark.parametrize("number", [TERM, USR1, USR2])
def test_a_signal_may_come_again_at_any_time(number: signal.Signals) -> None:
    assert delivered((1.0, number), (1.01, number), (31.0, number)) == (Received(name=number.name, at=1.0), [])


@pytest.mark.parametrize("later", [0.0, 0.01, SIGNAL_REPEAT_WINDOW_S])
def test_ctrl_c_twice_within_two_seconds_is_one(later: float) -> None:
    assert delivered((1.0, INT), (1.0 + later, INT))[1] == []


def test_ctrl_c_again_after_two_seconds_ends_the_process() -> None:
    assert delivered((1.0, INT), (1.01, INT), (1.1 + SIGNAL_REPEAT_WINDOW_S, INT))[1] == [130]


def test_the_first_ctrl_c_after_another_signal_does_not_abort() -> None:
    assert delivered((1.0, TERM), (9.0, INT))[1] == []


def test_the_handlers_from_before_come_back() -> None:
    before = [signal.getsignal(number) for number in (TERM, INT, USR1, USR2)]
    with Watch():
        assert signal.getsignal(TERM) not in before
    assert [signal.getsignal(number) for number in (TERM, INT, USR1, USR2)] == before


ABORTS = """
import os, signal
from train.run.signals import Watch
times = iter([0.0, 3.0])
with Watch(clock=lambda: next(times)):
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
    print("still here", flush=True)
"""


def test_an_abort_ends_the_process_with_130_without_cleaning_up() -> None:
    done = subprocess.run([sys.executable, "-c", ABORTS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_watching_needs_no_torch() -> None:
    code = "import sys, train.run.signals; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True).stdout == b"False\n"
    )
