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
    """Run `action` in a thread that nobody has to join: it ends with the process.

    Signal handlers raise in the main thread, when a data worker died or the job is stopped.
    `threading.Thread.start` runs Python code there, and such an exception in the middle of it
    leaves a thread that can neither be joined nor be relied on to run (CPython 3.11). This function
    is a single call into C.

    Raises:
        RuntimeError: the system has no thread left.
    """
    _thread.start_new_thread(action, ())


def refuse_few_threads(count: int) -> None:
    """Start so many threads for a moment. Where one is missing later, C++ aborts without a reason, or waits for ever.

    Raises:
        RuntimeError: the system has fewer threads left.
    """
    lock = _thread.allocate_lock()

    def wait() -> None:
        with lock:
            pass

    with lock:
        for _ in range(count):
            start_daemon_thread(wait)


T = TypeVar("T")
DEFAULT_TIMEOUT_S: Final = 5.0


def call_with_timeout(action: Callable[[], T], seconds: float = DEFAULT_TIMEOUT_S) -> T | None:
    """The action's result.

    None if it fails, cannot start, or takes longer than `seconds` (its thread is abandoned).
    """
    answer: queue.SimpleQueue[T | None] = queue.SimpleQueue()

    def act() -> None:
        try:
            answer.put(action())
        except Exception:  # of any type: the caller treats all errors alike
            answer.put(None)

    try:
        start_daemon_thread(act)
        return answer.get(timeout=seconds)
    except (queue.Empty, RuntimeError):  # RuntimeError: the system has no thread left
        return None
