"""Ranks as threads of the test: each calls the same function with its own place on a machine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from train.distributed.shared_memory import HostRanks

T = TypeVar("T")
PATIENCE_S = 60


def together(action: Callable[[HostRanks], T], nodes: Sequence[int]) -> list[T]:
    """What `action` returns on each rank; nodes: the machine of each."""
    meeting, values = threading.Barrier(len(nodes)), [None] * len(nodes)

    def all_gather(rank: int, value: Any) -> list[Any]:
        values[rank] = value
        meeting.wait(PATIENCE_S)
        found = list(values)
        meeting.wait(PATIENCE_S)
        return found

    def one(rank: int) -> T:
        tell: Callable[[Any], list[Any]] = lambda value: all_gather(rank, value)  # noqa: E731 - bound to this rank
        return action(HostRanks(node=nodes[rank], rank=rank, world_size=len(nodes), all_gather=tell))

    with ThreadPoolExecutor(len(nodes)) as pool:
        return list(pool.map(one, range(len(nodes))))
