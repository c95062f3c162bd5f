"""Actions that may never end."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from entrypoint import threads
from entrypoint.threads import call_with_timeout


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
