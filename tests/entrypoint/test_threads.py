"""A thread starts whatever a signal's handler interrupts, and an action that may never end has a timeout."""

from __future__ import annotations

import threading
from collections.abc import Callable
from unittest.mock import Mock

import pytest
from processes import python, unmeasured
from ringing import RINGING

from entrypoint import threads
from entrypoint.threads import call_with_timeout

INTERRUPTED = f"""{RINGING}
from entrypoint.threads import start_daemon_thread
sure, ran = 0, []
for trial in range(2000):
    with suppress(Rung):
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-6, 1e-4))
            start_daemon_thread(lambda: ran.append(trial))
            sure += 1
        finally:
            armed = False
signal.setitimer(signal.ITIMER_REAL, 0)
until = time.monotonic() + 60
while len(ran) < sure and time.monotonic() < until:
    time.sleep(0.01)
assert sure <= len(ran), (sure, len(ran))
"""


def test_what_was_begun_runs() -> None:
    done = threading.Event()
    threads.start_daemon_thread(done.set)
    assert done.wait(60)


def test_a_system_without_threads_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_thread", Mock(start_new_thread=Mock(side_effect=RuntimeError("can't start"))))
    with pytest.raises(RuntimeError, match="can't start"):
        threads.start_daemon_thread(lambda: None)


def test_too_few_threads_are_refused_and_enough_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    threads.refuse_few_threads(3)
    starts = Mock(side_effect=[None, None, RuntimeError("can't start new thread")])
    monkeypatch.setattr(threads, "start_daemon_thread", starts)
    with pytest.raises(RuntimeError, match="can't start"):
        threads.refuse_few_threads(3)


def test_handlers_that_raise_while_it_begins_break_no_thread() -> None:
    done = python("-c", INTERRUPTED, env=unmeasured(), timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_answer_that_comes_is_given() -> None:
    assert call_with_timeout(lambda: 42) == 42


def test_an_action_that_fails_has_no_answer() -> None:
    assert call_with_timeout(lambda: 1 // 0) is None


def test_an_action_that_never_ends_is_left_behind() -> None:
    never = threading.Event()
    assert call_with_timeout(never.wait, seconds=0.05) is None
    never.set()


def test_without_a_thread_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(action: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "start_daemon_thread", refuse)
    assert call_with_timeout(lambda: 42) is None
