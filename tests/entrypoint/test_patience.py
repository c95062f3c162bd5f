"""Actions that may never end."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from entrypoint import patience
from entrypoint.patience import in_time


def test_an_answer_that_comes_is_given() -> None:
    assert in_time(lambda: 42) == 42


def test_an_action_that_fails_has_no_answer() -> None:
    assert in_time(lambda: 1 // 0) is None


def test_an_action_that_never_ends_is_left_behind() -> None:
    never = threading.Event()
    assert in_time(never.wait, seconds=0.05) is None
    never.set()


def test_without_a_thread_there_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(action: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(patience, "begin_thread", refuse)
    assert in_time(lambda: 42) is None
