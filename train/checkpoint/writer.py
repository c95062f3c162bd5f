"""A background writer runs one slow action at a time in a thread beside training.

The caller must fetch each result, so that no error is lost. The module does not import torch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from entrypoint import start_daemon_thread

T = TypeVar("T")
POLL_INTERVAL_S: Final = 0.01


class BackgroundWriter(Generic[T]):
    """Runs an action in the background; `result` returns its value or raises its exception.

    It is a context manager: at the end of the block it waits for the action, also after an
    exception.
    """

    def __init__(self) -> None:
        self._task: _BackgroundTask[T] | None = None
        self._started = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exception_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is None:
            return
        if not self._started and self._task.run_lock.acquire(
            blocking=False
        ):  # `begin` was interrupted, and the action will never run
            self._task = None
            return
        while not self._task.done:
            time.sleep(POLL_INTERVAL_S)

    @property
    def over(self) -> bool:
        """Whether a result is available."""
        return self._task is not None and self._task.done

    def begin(self, action: Callable[[], T]) -> None:
        """Run `action` in a thread. The previous result must have been fetched.

        There is one action at a time.
        """
        if self._task is not None:
            raise RuntimeError("the writer is at work")
        self._started, self._task = False, _BackgroundTask(action)
        start_daemon_thread(self._task.run)
        self._started = True

    def result(self, meanwhile: Callable[[], object] = lambda: None) -> T:
        """Wait, then return or raise the action's result.

        While it waits, signals are handled and `meanwhile` is called repeatedly.
        """
        if self._task is None:
            raise RuntimeError("the writer has nothing to do")
        while not self._task.done:
            meanwhile()
            time.sleep(POLL_INTERVAL_S)
        task, self._task = self._task, None
        if task.error is not None:
            raise task.error
        return task.value  # type: ignore[return-value]


class _BackgroundTask(Generic[T]):
    """One action and its result.

    The waiting thread polls without a lock: a signal handler that raises after an acquire would
    leave it locked.
    """

    def __init__(self, action: Callable[[], T]) -> None:
        self.run_lock = threading.Lock()  # held by the thread that runs the action, or by the one that cancels it
        self.done = False
        self.value: T | None = None
        self.error: BaseException | None = None
        self._action = action

    def run(self) -> None:
        """Run the action; called in the thread."""
        if not self.run_lock.acquire(blocking=False):
            return
        try:
            self.value = self._action()
        except BaseException as error:  # of any type: `result` raises it again
            self.error = error
        self.done = True
