"""Times collective operations on known numbers over all ranks, and compares what each rank receives."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor
from torch import distributed as dist

from entrypoint import ExitCode, Failure, World
from train.distributed.device import failure_from_error, summarize_error

ALL_REDUCE, BROADCAST, GATHER = OPERATIONS = ("all-reduce", "broadcast", "gather")
NUM_CHECKS: Final = 5
TENSOR_MIB: Final = {"cpu": 16, "cuda": 256}  # long enough for the speed of the wire to show
PATTERN_PERIOD: Final = 7  # numbers differ along the tensor, so that a misplaced piece shows
SECONDS_PER_SIZE: Final = 1.0  # of one operation
MAX_REPEATS: Final = 50


@contextmanager
def process_group(world: World, device: torch.device, store: dist.Store, timeout_s: float) -> Iterator[str]:
    """Open a process group of all ranks; yields the name of its backend.

    Raises:
        Failure: NODE if a GPU fails inside; RESOURCE if memory is short; PEER if a rank is lost.
    """
    backend = "nccl" if device.type == "cuda" else "gloo"
    try:
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("smoke", store),
            rank=world.rank,
            world_size=world.world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        try:
            yield backend
        finally:
            dist.destroy_process_group()
    except (RuntimeError, dist.DistError) as error:
        raise failure_from_error(error) or Failure(
            f"rank {world.rank} on {socket.gethostname()} could not exchange numbers over {backend}",
            found=summarize_error(error),
            fix="look at the first rank that failed; NCCL_DEBUG=INFO says which way its data took",
            code=ExitCode.PEER,
        ) from error


def check_all_reduce(world: World, device: torch.device) -> dict[str, Any]:
    """Sum known numbers, check every sum and time them. All ranks call it, inside a process group.

    Returns the number of ranks, the size in MiB, the seconds, and the bytes per second of the bus, as NCCL's own tests
    count them: 0 for a single rank, which sends nothing.

    Raises:
        Failure: NODE if a sum is wrong.
    """
    mib = TENSOR_MIB[device.type]
    seconds = median(_run_checked(Collective(ALL_REDUCE, world, device, mib * 2**18)) for _ in range(NUM_CHECKS))
    sent = 2 * (world.world_size - 1) / world.world_size * mib * 2**20
    return {"ranks": world.world_size, "mib": mib, "seconds": seconds, "bytes_per_s": sent / seconds}


def time_operations(world: World, device: torch.device, sizes: Sequence[int]) -> dict[str, Any]:
    """The seconds of each operation by its size in bytes, on the slowest rank. All ranks call it, in a process group.

    Raises:
        Failure: NODE, on a rank that received wrong numbers.
    """
    seconds = {name: [(size, _time_operation(name, world, device, size)) for size in sizes] for name in OPERATIONS}
    return {"ranks": world.world_size, "nodes": world.num_nodes, "seconds": seconds}


def _time_operation(name: str, world: World, device: torch.device, size: int) -> float:
    """The median of as many repeats as fit into a second. Later sums grow, and are not compared."""
    collective = Collective(name, world, device, max(1, size // 4))
    first = _slowest(_run_checked(collective), device)
    repeats = max(3, min(MAX_REPEATS, int(SECONDS_PER_SIZE / max(first, 1e-6))))
    return median(_slowest(collective.run(), device) for _ in range(repeats))


def _slowest(seconds: float, device: torch.device) -> float:
    """The longest time of all ranks."""
    longest = torch.tensor(seconds, device=device)
    dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return float(longest)


def _run_checked(collective: Collective) -> float:
    seconds = collective.run()
    collective.refuse_wrong_numbers()
    return seconds


class Collective:
    """One collective operation on `count` fp32 numbers of each rank, which knows what is right after its first run."""

    def __init__(self, name: str, world: World, device: torch.device, count: int) -> None:
        self.name, self.world = name, world
        self.numbers = rank_numbers(world.rank, count, device)
        is_receiver = name == GATHER and world.rank == 0
        self.gathered = [torch.empty_like(self.numbers) for _ in range(world.world_size if is_receiver else 0)]

    def run(self) -> float:
        """Run it once, in place; rank 0 gathers into other memory. Returns this rank's seconds."""
        _slowest(0.0, self.numbers.device)  # all ranks begin together
        start = time.perf_counter()
        if self.name == ALL_REDUCE:
            dist.all_reduce(self.numbers)
        elif self.name == BROADCAST:
            dist.broadcast(self.numbers, src=0)
        else:
            dist.gather(self.numbers, self.gathered or None, dst=0)
        _synchronize(self.numbers.device)
        return time.perf_counter() - start

    def received(self) -> list[tuple[Tensor, int]]:
        """What this rank has after the first run: numbers, and by how much they are rank 0's own, multiplied."""
        size = self.world.world_size
        if self.name == GATHER:
            return [(numbers, rank + 1) for rank, numbers in enumerate(self.gathered)]
        return [(self.numbers, size * (size + 1) // 2 if self.name == ALL_REDUCE else 1)]

    def refuse_wrong_numbers(self) -> None:
        """Check every number after the first run.

        Raises:
            Failure: NODE, with the first wrong number.
        """
        for numbers, factor in self.received():
            expected = rank_numbers(0, numbers.numel(), numbers.device) * factor
            wrong = (numbers != expected).nonzero()
            if len(wrong):
                at = int(wrong[0])
                raise Failure(
                    f"rank {self.world.rank} on {socket.gethostname()} got wrong numbers from the {self.name}",
                    found=f"{len(wrong)} of {numbers.numel()} numbers differ; number {at} is {numbers[at].item():g}",
                    expected=f"{expected[at].item():g}",
                    fix="leave this node out (srun --exclude) and report it; on Slingshot: NCCL_PROTO=^LL128",
                    code=ExitCode.NODE,
                )


def rank_numbers(rank: int, count: int, device: torch.device) -> Tensor:
    """The numbers [count] that one rank contributes: integers, which fp32 sums without rounding."""
    return (torch.arange(count, device=device, dtype=torch.float32) % PATTERN_PERIOD + 1) * (rank + 1)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
