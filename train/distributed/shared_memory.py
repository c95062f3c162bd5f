"""The ranks of one machine find each other and share memory."""

from __future__ import annotations

import mmap
import os
import pickle
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entrypoint import Failure, World, num_usable_cores

T = TypeVar("T")
Array = npt.NDArray[Any]
PROC_FOLDER: Final = Path("/proc")
BOOT_ID_FILE: Final = PROC_FOLDER / "sys/kernel/random/boot_id"
ARRAY_ALIGNMENT: Final = 64  # bytes: numpy and torch compute faster with aligned arrays, and some functions need them


def read_boot_id() -> str:
    """The id of this boot of the machine's kernel; the same in all containers on the machine."""
    with suppress(OSError):
        return BOOT_ID_FILE.read_text()
    return ""


def _gather_alone(value: Any) -> list[Any]:
    return [value]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRanks:
    """The ranks on this rank's machine.

    node, rank: of this rank. world_size: all ranks, on all machines. all_gather: returns every
    rank's value, in the order of the ranks.
    """

    node: int = 0
    rank: int = 0
    world_size: int = 1
    all_gather: Callable[[Any], list[Any]] = _gather_alone

    def cores(self) -> int:
        """The number of cores for this rank alone.

        The cores of its affinity, or of the CPU quota, are divided among the ranks with the same affinity.
        """
        affinity = (self.node, sorted(os.sched_getaffinity(0)))
        return max(1, num_usable_cores() // self.all_gather(affinity).count(affinity))

    def first(self, action: Callable[[], T]) -> T:
        """Run `action` on the first rank of each machine; returns its result on all ranks there. All ranks call it.

        Raises:
            Failure: on all ranks, if `action` raises one on any machine; of several machines it names that one.
        """
        if self.world_size == 1:
            return action()
        nodes = self.all_gather(self.node)
        leads = nodes.index(self.node) == self.rank
        machine = socket.gethostname() if len(set(nodes)) > 1 else None
        results = self.all_gather(_result_or_failure(action, machine) if leads else (None, None))
        for _, failure in results:
            if failure is not None:
                raise Failure(**failure)
        return results[nodes.index(self.node)][0]  # type: ignore[no-any-return]

    def first_shared(self, action: Callable[[], T]) -> T:
        """As `first`, for a result that holds contiguous arrays, whose memory all ranks of the machine then share.

        All ranks call it. The arrays must not be changed. If the machine's ranks cannot share memory, each of them runs
        `action` itself.

        Raises:
            Failure: as `first`; if memory cannot be shared, also on this rank alone.
        """
        if self.world_size == 1:
            return action()
        own, buffers = list[T](), list[pickle.PickleBuffer]()  # of the first rank of a machine

        def run_and_pickle() -> tuple[bytes, list[int]]:
            own.append(action())
            # Protocol 5 leaves the bytes of arrays out, and an array that is there twice stays one.
            pickled = pickle.dumps(own[0], protocol=5, buffer_callback=buffers.append)
            return pickled, [buffer.raw().nbytes for buffer in buffers]

        pickled, sizes = self.first(run_and_pickle)
        starts = [0, *accumulate(-(-size // ARRAY_ALIGNMENT) * ARRAY_ALIGNMENT for size in sizes)]
        memory = self.area(max(starts[-1], 1)).memory  # never of 0 bytes: `area` would skip its exchanges
        parts = list[Array]()
        if memory is not None:
            parts = [memory.numpy()[start : start + size] for start, size in zip(starts, sizes, strict=False)]
        for part, buffer in zip(parts, buffers, strict=False):
            part[...] = np.asarray(buffer.raw())
        self.all_gather(None)  # until the first rank has written them
        if memory is None:
            return own[0] if own else action()
        return pickle.loads(pickled, buffers=parts)  # type: ignore[no-any-return]

    def area(self, size: int) -> HostMemory:
        """`size` bytes of zeros, which all ranks of this machine share if they can. All ranks call it.

        The first rank passes its memory on by the number of its open file. Only processes of the same user can
        open that, it fills no file system, and it is gone when the last process ends.
        """
        if self.world_size == 1 or size == 0:
            return HostMemory(ranks=(self.rank,))
        nodes = self.all_gather(self.node)
        ranks = tuple(rank for rank, node in enumerate(nodes) if node == self.node)
        handle = _create_memory_file(size) if self.rank == ranks[0] < ranks[-1] else None
        offers = self.all_gather(None if handle is None else (os.getpid(), handle, _file_identity(handle)))
        handle = _open_memory_file(offers[ranks[0]]) if handle is None else handle
        mapped = _map_memory_file(handle, size)
        common = self.all_gather(mapped is not None)  # until then the first rank must keep its file open
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
    """Find the ranks of this rank's machine. All ranks call it. machine: returns an id unique to the machine.

    Some launchers do not give a rank its node number. The number computed instead is wrong if the launcher
    distributes ranks in turn (mpirun --map-by node). If ranks of one node have different machine ids, the ids decide.
    """
    node = world.node_rank
    if world.num_nodes > 1:
        marks = all_gather((node, mark := machine()))
        if len(set(marks)) > len({number for number, _ in marks}):
            node = [each for _, each in marks].index(mark)
    return HostRanks(node=node, rank=world.rank, world_size=world.world_size, all_gather=all_gather)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """Memory (uint8 [size]) and the ranks that share it; None if this rank must allocate its own."""

    ranks: tuple[int, ...]
    memory: Tensor | None = None


def _result_or_failure(action: Callable[[], T], machine: str | None) -> tuple[T | None, dict[str, Any] | None]:
    try:
        return action(), None
    except Failure as failure:
        arguments = failure.arguments()
        if machine is not None:
            arguments["found"] = f"{failure.found or failure.what} (on {machine})"
        return None, arguments


def _create_memory_file(size: int) -> int | None:
    """A file of zeros in memory, which takes memory only where it is written; None if the system has none."""
    with suppress(OSError):
        handle = os.memfd_create("train-data", os.MFD_CLOEXEC)
        with suppress(OSError):
            os.truncate(handle, size)
            return handle
        os.close(handle)
    return None


def _open_memory_file(offer: tuple[int, int, tuple[int, ...]] | None) -> int | None:
    """Open the first rank's file, if this rank can see that process and the file is the same one."""
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
    status = os.fstat(handle)
    return status.st_dev, status.st_ino, status.st_size
