"""Calls a function for many items in several processes, for commands that start no ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from entrypoint import ExitCode, Failure, die_with_parent, num_usable_cores

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_processes(
    function: Callable[[Item], Result], items: Sequence[Item], processes: int | None = None
) -> Iterator[Result]:
    """The results in the order of the items. processes: as many as there are cores, unless given.

    Raises:
        Failure: what `function` raises; PEER if a process was killed.
    """
    count = min(processes or num_usable_cores(), len(items))
    if count <= 1:
        yield from map(function, items)
        return
    with ProcessPoolExecutor(count, initializer=_prepare_process, initargs=(os.getpid(),)) as pool:
        try:
            yield from pool.map(function, items)
        except BrokenProcessPool as error:
            raise Failure(
                "a process that works on the data was killed",
                found=str(error),
                fix="start the same command again; if nobody killed it: give more memory",
                code=ExitCode.PEER,
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


def _prepare_process(parent: int) -> None:
    """The handlers of the command are for its own process, and without it nobody wants the results."""
    die_with_parent(signal.SIGKILL, parent)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
