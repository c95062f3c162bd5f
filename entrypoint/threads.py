"""Daemon threads start completely or not at all, and carry calls that need a timeout.

A signal handler may raise while a thread is being started, and a dead file system may block a call
for ever.
"""

from __future__ import annotations

import _thread
import queue
from collections.abc import Callable
from typing import Final, TypeVar


def start_daemon_thread(action: Callable[[], None]) -> None:
    """Run `action` in a thread that nobody has to wait for: it ends with the process.

    Handlers raise in the main thread: a data worker died, the job is to stop. `threading.Thread.start` runs Python code
    there, so that such an error leaves a thread that can be neither joined nor trusted to run (CPython 3.11); this is
    one call into C.

    Raises:
        RuntimeError: the system has no thread left.
    """
    _thread.start_new_thread(action, ())


T = TypeVar("T")
DEFAULT_TIMEOUT_S: Final = 5.0


def call_with_timeout(action: Callable[[], T], seconds: float = DEFAULT_TIMEOUT_S) -> T | None:
    """What the action returns; None where it fails, takes longer (it is left behind then), or cannot begin."""
    answer: queue.SimpleQueue[T | None] = queue.SimpleQueue()

    def act() -> None:
        try:
            answer.put(action())
        except Exception:  # whatever it is: the caller has more urgent things to do
            answer.put(None)

    try:
        start_daemon_thread(act)
        return answer.get(timeout=seconds)
    except (queue.Empty, RuntimeError):  # RuntimeError: the system has no thread left
        return None
