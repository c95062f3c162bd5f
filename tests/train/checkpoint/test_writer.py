"""What a thread of its own does is never lost: its result is returned, its error raised."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
from processes import python, unmeasured
from ringing import RINGING

from entrypoint import ExitCode, Failure
from train.checkpoint.writer import BackgroundWriter


def failing() -> None:
    raise Failure("the disk is full", fix="free some", code=ExitCode.IO)


def test_the_result_is_what_the_action_returned() -> None:
    writer = BackgroundWriter[int]()
    writer.begin(lambda: 7)
    assert writer.result() == 7


def test_what_was_raised_is_raised_where_it_is_waited_for() -> None:
    writer = BackgroundWriter[None]()
    writer.begin(failing)
    with pytest.raises(Failure, match="the disk is full"):
        writer.result()


def test_it_works_beside_its_caller_who_can_look_whether_it_is_over() -> None:
    writer, going = BackgroundWriter[bool](), threading.Event()
    assert not writer.over
    writer.begin(lambda: going.wait(60))
    assert not writer.over
    going.set()
    assert writer.result()
    assert not writer.over


def test_there_are_never_two() -> None:
    writer = BackgroundWriter[int]()
    writer.begin(lambda: 1)
    with pytest.raises(RuntimeError):
        writer.begin(lambda: 2)
    assert writer.result() == 1
    writer.begin(lambda: 3)
    assert writer.result() == 3


def test_nothing_begun_has_no_result() -> None:
    with pytest.raises(RuntimeError):
        BackgroundWriter[int]().result()


def test_the_end_of_the_block_waits_whatever_ended_it() -> None:
    done, going = list[bool](), threading.Event()
    with suppress(KeyError), BackgroundWriter[None]() as writer:
        writer.begin(lambda: done.append(going.wait(60)))
        threading.Timer(0.01, going.set).start()
        raise KeyError
    assert done == [True]


ABORTED = """
import os, signal, threading, time
from train.checkpoint.writer import BackgroundWriter
from train.run.stop import StopSignals
ticks = iter([0.0, 3.0])
StopSignals(clock=lambda: next(ticks)).install()
writer = BackgroundWriter()
writer.begin(lambda: [os.kill(os.getpid(), signal.SIGINT) or time.sleep(0.2) for _ in range(2)] and time.sleep(600))
writer.result()
"""


def test_a_second_ctrl_c_aborts_while_the_result_is_waited_for() -> None:
    assert python("-c", ABORTED, timeout=60).returncode == 130


INTERRUPTED = f"""{RINGING}
from train.checkpoint.writer import BackgroundWriter
begun, ended = [], []
for trial in range(3000):
    with suppress(Rung):
        try:
            armed = True
            with BackgroundWriter() as writer:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-6, 3e-4))
                writer.begin(lambda: (begun.append(trial), ended.append(trial)))
                writer.result()
        finally:
            armed = False
            assert begun == ended
signal.setitimer(signal.ITIMER_REAL, 0)
"""


def test_a_signal_that_raises_while_the_thread_is_started_is_the_error_that_is_seen() -> None:
    done = python("-c", INTERRUPTED, env=unmeasured(), timeout=120)
    assert done.returncode == 0, done.stderr
