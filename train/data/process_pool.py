"""Calls a function for many items in several processes, for commands that start no ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Final, TypeVar

from entrypoint import ExitCode, Failure, die_with_parent, num_usable_cores

Item = TypeVar("Item")
Result = TypeVar("Result")
# Python's own default until 3.13. Others pickle what they hand over, and mapped files and a user's data set cannot be.
START_METHOD: Final = "fork"


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
    with ProcessPoolExecutor(count, get_context(START_METHOD), _prepare_process, (os.getpid(),)) as pool:
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
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
