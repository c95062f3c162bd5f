"""Signals only set a flag, and only a second Ctrl-C ends the process at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from entrypoint import SIGNAL_REPEAT_WINDOW_S
from train.run.stop import ReceivedSignal, StopSignals

TERM, INT, USR1, USR2 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def delivered(*events: tuple[float, signal.Signals]) -> tuple[ReceivedSignal | None, list[int]]:
    """What is received after each signal came at its time, and the codes that the process would have ended with."""
    clock, aborted = Clock(), list[int]()
    signals = StopSignals(clock=clock, abort=aborted.append)
    for clock.now, number in events:
        signals.handle(number)
    return signals.received, aborted


@contextmanager
def handled(number: signal.Signals, signals: StopSignals) -> Iterator[None]:
    """Inside, a signal goes to `signals`."""
    before = signal.signal(number, signals.handle)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [TERM, INT, USR1, USR2])
def test_a_real_signal_sets_the_flag_and_nothing_else(number: signal.Signals) -> None:
    signals = StopSignals(clock=lambda: 7.0)
    with handled(number, signals):
        os.kill(os.getpid(), number)
    assert signals.received == ReceivedSignal(name=number.name, at=7.0)


def test_nothing_is_received_before_a_signal_came() -> None:
    assert delivered() == (None, [])


def test_the_first_signal_is_the_cause() -> None:
    assert delivered((1.0, USR1), (5.0, TERM))[0] == ReceivedSignal(name="SIGUSR1", at=1.0)


@pytest.mark.parametrize("number", [TERM, USR1, USR2])
def test_a_signal_may_come_again_at_any_time(number: signal.Signals) -> None:
    assert delivered((1.0, number), (1.01, number), (31.0, number)) == (ReceivedSignal(name=number.name, at=1.0), [])


@pytest.mark.parametrize("later", [0.0, 0.01, SIGNAL_REPEAT_WINDOW_S])
def test_ctrl_c_twice_within_two_seconds_is_one(later: float) -> None:
    assert delivered((1.0, INT), (1.0 + later, INT))[1] == []


def test_ctrl_c_again_after_two_seconds_ends_the_process() -> None:
    assert delivered((1.0, INT), (1.01, INT), (1.1 + SIGNAL_REPEAT_WINDOW_S, INT))[1] == [130]


def test_the_first_ctrl_c_after_another_signal_does_not_abort() -> None:
    assert delivered((1.0, TERM), (9.0, INT))[1] == []


ABORTS = """
import os, signal
from train.run.stop import StopSignals
times = iter([0.0, 3.0])
StopSignals(clock=lambda: next(times)).install()
for _ in range(2):
    os.kill(os.getpid(), signal.SIGINT)
print("still here", flush=True)
"""


def test_an_abort_ends_the_process_with_130_without_cleaning_up() -> None:
    done = subprocess.run([sys.executable, "-c", ABORTS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_watching_needs_no_torch() -> None:
    code = "import sys, train.run.stop; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True).stdout == b"False\n"
    )
