"""A thread begins as a whole or not at all, whatever a signal's handler raises meanwhile."""

from __future__ import annotations

import _thread
from collections.abc import Callable


def begin_thread(action: Callable[[], None]) -> None:
    """Run `action` in a thread that nobody has to wait for: it ends with the process.

    Handlers raise in the main thread: a data worker died, the job is to stop. `threading.Thread.start` runs Python code
    there, so that such an error leaves a thread that can be neither joined nor trusted to run (CPython 3.11); this is
    one call into C.

    Raises:
        RuntimeError: the system has no thread left.
    """
    _thread.start_new_thread(action, ())
