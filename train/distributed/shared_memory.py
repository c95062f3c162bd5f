"""The ranks of one machine find each other and share memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from entrypoint import Failure, World, num_usable_cores

T = TypeVar("T")
PROC_FOLDER: Final = Path("/proc")
BOOT_ID_FILE: Final = PROC_FOLDER / "sys/kernel/random/boot_id"


def read_boot_id() -> str:
    """What this machine's kernel has been called since it started; containers on it are told the same."""
    with suppress(OSError):
        return BOOT_ID_FILE.read_text()
    return ""


def _gather_alone(value: Any) -> list[Any]:
    return [value]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRanks:
    """This rank among those of its machine. `all_gather` gives every rank's value, in the order of the ranks.

    node, rank: of this rank. world_size: all ranks, on all machines.
    """

    node: int = 0
    rank: int = 0
    world_size: int = 1
    all_gather: Callable[[Any], list[Any]] = _gather_alone

    def cores(self) -> int:
        """Processors that this rank can keep busy: those of its affinity, or as many as a quota gives time for, divided
        among the ranks that have the same.
        """
        mine = (self.node, sorted(os.sched_getaffinity(0)))
        return max(1, num_usable_cores() // self.all_gather(mine).count(mine))

    def first(self, action: Callable[[], T]) -> T:
        """What `action` returns on the first rank of this machine, on all of them. To be called by all ranks.

        Raises:
            Failure: what it raises on any machine, on all ranks.
        """
        if self.world_size == 1:
            return action()
        nodes = self.all_gather(self.node)
        leads = nodes.index(self.node) == self.rank
        found = self.all_gather(_result_or_failure(action) if leads else (None, None))
        for _, failure in found:
            if failure is not None:
                raise Failure(**failure)
        return found[nodes.index(self.node)][0]  # type: ignore[no-any-return]

    def area(self, size: int) -> HostMemory:
        """`size` bytes of zeros, which all ranks of this machine share where they can. To be called by all ranks.

        A rank hands its memory on by the number of its open file: only processes of the same user may open that, no
        file system is filled, and nothing is left when the last of them ends.
        """
        if self.world_size == 1 or size == 0:
            return HostMemory(ranks=(self.rank,))
        nodes = self.all_gather(self.node)
        ranks = tuple(rank for rank, node in enumerate(nodes) if node == self.node)
        handle = _create_memory_file(size) if self.rank == ranks[0] < ranks[-1] else None
        offers = self.all_gather(None if handle is None else (os.getpid(), handle, _file_identity(handle)))
        handle = _open_memory_file(offers[ranks[0]]) if handle is None else handle
        mapped = _map_memory_file(handle, size)
        common = self.all_gather(mapped is not None)  # until here the first rank's file was open
        if handle is not None:
            os.close(handle)
        return (
            HostMemory(memory=mapped, ranks=ranks)
            if all(common[rank] for rank in ranks)
            else HostMemory(ranks=(self.rank,))
        )


SINGLE_RANK: Final = HostRanks()


def host_ranks(
    world: World, all_gather: Callable[[Any], list[Any]], machine: Callable[[], str] = read_boot_id
) -> HostRanks:
    """This rank among those of its machine. To be called by all ranks. machine: its mark, which no other one has.

    Some launchers tell a rank no node's number, and the one that was counted up for it is wrong where they deal ranks
    out in turn (mpirun --map-by node). Where ranks of one node have machines of several marks, the marks decide.
    """
    node = world.node_rank
    if world.num_nodes > 1:
        told = all_gather((node, mark := machine()))
        if len(set(told)) > len({number for number, _ in told}):
            node = [each for _, each in told].index(mark)
    return HostRanks(node=node, rank=world.rank, world_size=world.world_size, all_gather=all_gather)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """uint8 [size] of one machine's memory, and the ranks that share it; None: a rank that has its own."""

    ranks: tuple[int, ...]
    memory: Tensor | None = None


def _result_or_failure(action: Callable[[], T]) -> tuple[T | None, dict[str, Any] | None]:
    try:
        return action(), None
    except Failure as failure:
        return None, failure.arguments()


def _create_memory_file(size: int) -> int | None:
    """Zeros that take memory only where they are written; None where the system has no such files."""
    with suppress(OSError):
        handle = os.memfd_create("train-data", os.MFD_CLOEXEC)
        with suppress(OSError):
            os.truncate(handle, size)
            return handle
        os.close(handle)
    return None


def _open_memory_file(offer: tuple[int, int, tuple[int, ...]] | None) -> int | None:
    """The first rank's file, if that process can be seen from here, and is the one that is meant."""
    if offer is None:
        return None
    process, number, identity = offer
    with suppress(OSError):
        handle = os.open(PROC_FOLDER / str(process) / "fd" / str(number), os.O_RDWR | os.O_CLOEXEC)
        if _file_identity(handle) == identity:
            return handle
        os.close(handle)
    return None


def _map_memory_file(handle: int | None, size: int) -> Tensor | None:
    if handle is None:
        return None
    with suppress(OSError, ValueError):
        return torch.frombuffer(mmap.mmap(handle, size), dtype=torch.uint8)
    return None


def _file_identity(handle: int) -> tuple[int, ...]:
    found = os.fstat(handle)
    return found.st_dev, found.st_ino, found.st_size
