"""Work that takes long becomes a thread beside training, one at a time, whose outcome nobody can overlook. No torch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

T = TypeVar("T")
POLL_S: Final = 0.2


class Writer(Generic[T]):
    """Begin, go on with something else, and take the result: what was returned, or what was raised.

    While entered; at its end what is being done is waited for, however the block ended.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._value: T | None = None
        self._error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._thread.join()

    @property
    def over(self) -> bool:
        """Whether there is a result to take, without waiting for it."""
        return self._thread is not None and not self._thread.is_alive()

    def begin(self, action: Callable[[], T]) -> None:
        """Run `action` in the thread. The result of the one before must have been taken: never two at once."""
        if self._thread is not None:
            raise RuntimeError("the writer is at work")
        self._value, self._error = None, None
        # A daemon: a process that has to leave at once does not wait for a disk that does not answer.
        self._thread = threading.Thread(target=self._run, args=(action,), name="writer", daemon=True)
        self._thread.start()

    def result(self, meanwhile: Callable[[], object] = lambda: None) -> T:
        """Wait, then return or raise what `action` did. `meanwhile` is called again and again, signals are handled."""
        if self._thread is None:
            raise RuntimeError("the writer has nothing to do")
        while self._thread.is_alive():
            meanwhile()
            self._thread.join(POLL_S)
        self._thread, error = None, self._error
        if error is not None:
            raise error
        return self._value  # type: ignore[return-value]

    def _run(self, action: Callable[[], T]) -> None:
        try:
            self._value = action()
        except BaseException as error:  # anything: it is raised again where it is waited for
            self._error = error
