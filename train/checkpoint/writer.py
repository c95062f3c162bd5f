"""A background writer runs one slow action at a time in a thread beside training.

The result must be taken, so no error is lost. The module does not import torch.
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
    """Begin, go on with something else, and take the result: what was returned, or what was raised.

    While entered; at its end what is being done is waited for, however the block ended.
    """

    def __init__(self) -> None:
        self._work: _BackgroundTask[T] | None = None
        self._begun = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._work is None:
            return
        if not self._begun and self._work.turn.acquire(blocking=False):  # `begin` was interrupted: it never will begin
            self._work = None
            return
        while not self._work.over:
            time.sleep(POLL_INTERVAL_S)

    @property
    def over(self) -> bool:
        """Whether there is a result to take, without waiting for it."""
        return self._work is not None and self._work.over

    def begin(self, action: Callable[[], T]) -> None:
        """Run `action` in the thread. The result of the one before must have been taken: never two at once."""
        if self._work is not None:
            raise RuntimeError("the writer is at work")
        self._begun, self._work = False, _BackgroundTask(action)
        start_daemon_thread(self._work.run)
        self._begun = True

    def result(self, meanwhile: Callable[[], object] = lambda: None) -> T:
        """Wait, then return or raise what `action` did. `meanwhile` is called again and again, signals are handled."""
        if self._work is None:
            raise RuntimeError("the writer has nothing to do")
        while not self._work.over:
            meanwhile()
            time.sleep(POLL_INTERVAL_S)
        work, self._work = self._work, None
        if work.error is not None:
            raise work.error
        return work.value  # type: ignore[return-value]


class _BackgroundTask(Generic[T]):
    """One action and what came of it.

    It is waited for by looking, without a lock: a handler that raises where one is taken would leave it taken.
    """

    def __init__(self, action: Callable[[], T]) -> None:
        self.turn = threading.Lock()  # of the thread that runs it, or of the one that sees to it that none will
        self.over = False
        self.value: T | None = None
        self.error: BaseException | None = None
        self._action = action

    def run(self) -> None:
        """In the thread."""
        if not self.turn.acquire(blocking=False):
            return
        try:
            self.value = self._action()
        except BaseException as error:  # anything: it is raised again where it is waited for
            self.error = error
        self.over = True
