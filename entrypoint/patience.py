"""An action that a dead file system may hold for ever becomes one that ends in time."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Final, TypeVar

from entrypoint.threads import begin_thread

T = TypeVar("T")
PATIENCE_S: Final = 5.0


def in_time(action: Callable[[], T], seconds: float = PATIENCE_S) -> T | None:
    """What the action returns; None where it fails, takes longer (it is left behind then), or cannot begin."""
    answer: queue.SimpleQueue[T | None] = queue.SimpleQueue()

    def act() -> None:
        try:
            answer.put(action())
        except Exception:  # whatever it is: the caller has more urgent things to do
            answer.put(None)

    try:
        begin_thread(act)
        return answer.get(timeout=seconds)
    except (queue.Empty, RuntimeError):  # RuntimeError: the system has no thread left
        return None
