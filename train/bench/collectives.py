"""This module runs one rank that times all-reduce, broadcast and gather, and compares the numbers it receives."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from statistics import median
from typing import Final

import torch
from torch import Tensor
from torch import distributed as dist

from entrypoint import ExitCode, Failure, attach_heartbeat, world_from_environ
from train.config import environment, load
from train.distributed import runtime
from train.distributed.runtime import Runtime

PATTERN_PERIOD: Final = 97  # the numbers are small, so that their sums are exact
SECONDS_PER_SIZE: Final = 1.0  # of one operation
MAX_REPEATS: Final = 50


def main(words: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """Measure each operation with each size; rank 0 writes the result file."""
    arguments = build_parser().parse_args(words)
    world, heartbeat = world_from_environ(environ), attach_heartbeat(environ)
    environment.remove_conflicting_variables(environ, download=False)
    rank_runtime = runtime.start(load.load_config(None), world, environ, accumulation=1)
    try:
        seconds = {name: [(size, measure(rank_runtime, name, size)) for size in arguments.sizes] for name in OPERATIONS}
    finally:
        rank_runtime.close()
    if rank_runtime.is_main:
        result = {
            "ranks": world.world_size,
            "nodes": world.num_nodes,
            "device": rank_runtime.device.type,
            "seconds": seconds,
        }
        Path(arguments.result).write_text(json.dumps(result))
    heartbeat.beat("end")


def build_parser() -> argparse.ArgumentParser:
    """The command line that `train bench comm` writes."""
    parser = argparse.ArgumentParser(prog="train.bench.collectives", allow_abbrev=False)
    parser.add_argument("--result", metavar="FILE", required=True)
    parser.add_argument("--sizes", metavar="BYTES", type=int, nargs="+", required=True)
    return parser


def measure(rank_runtime: Runtime, name: str, size: int) -> float:
    """Seconds of the slowest rank: the median of as many repeats as fit into a second.

    Raises:
        Failure: NODE, on a rank that received wrong numbers.
    """
    operation = OPERATIONS[name](rank_runtime, max(1, size // 4))
    operation.check(name)
    first = _time_slowest_rank(rank_runtime, operation)
    repeats = max(3, min(MAX_REPEATS, int(SECONDS_PER_SIZE / max(first, 1e-6))))
    repeats = int(rank_runtime.run_on_rank_zero(lambda: repeats))
    return median(_time_slowest_rank(rank_runtime, operation) for _ in range(repeats))


class Operation:
    """One collective operation on fp32 numbers of each rank, with the numbers expected after it."""

    def __init__(self, rank_runtime: Runtime, count: int) -> None:
        self.world_size, self.rank = rank_runtime.world.world_size, rank_runtime.world.rank
        self.pattern = torch.arange(count, device=rank_runtime.device).remainder_(PATTERN_PERIOD).float()
        self.own = self.pattern + self.rank

    def run(self) -> None:
        """Run it once."""
        raise NotImplementedError

    def received(self) -> list[tuple[Tensor, Tensor]]:
        """(received, expected) after the first run."""
        raise NotImplementedError

    def check(self, name: str) -> None:
        """Run it once and compare. Raises Failure: NODE."""
        self.run()
        num_wrong = sum(int((received != expected).sum()) for received, expected in self.received())
        if num_wrong:
            raise Failure(
                f"numbers are wrong after a {name}",
                found=f"{num_wrong} of them on rank {self.rank}, of {self.own.numel()} that each rank gave",
                fix="leave this node out, and have its memory, GPU and network checked",
                code=ExitCode.NODE,
            )


class AllReduce(Operation):
    """The sum of all ranks' numbers, on all ranks. Later sums grow, and are not compared."""

    def run(self) -> None:
        """Sum in place."""
        dist.all_reduce(self.own)

    def received(self) -> list[tuple[Tensor, Tensor]]:
        """Each rank adds the pattern and its rank."""
        return [(self.own, self.pattern * self.world_size + self.world_size * (self.world_size - 1) / 2)]


class Broadcast(Operation):
    """The numbers of rank 0, on all ranks."""

    def run(self) -> None:
        """Receive in place."""
        dist.broadcast(self.own, src=0)

    def received(self) -> list[tuple[Tensor, Tensor]]:
        """Rank 0 adds nothing to the pattern."""
        return [(self.own, self.pattern)]


class Gather(Operation):
    """The numbers of all ranks, on rank 0."""

    def __init__(self, rank_runtime: Runtime, count: int) -> None:
        super().__init__(rank_runtime, count)
        self.all = [torch.zeros_like(self.own) for _ in range(self.world_size)] if self.rank == 0 else None

    def run(self) -> None:
        """Receive into other buffers."""
        dist.gather(self.own, self.all, dst=0)

    def received(self) -> list[tuple[Tensor, Tensor]]:
        """Those of each rank, in order."""
        return [(received, self.pattern + rank) for rank, received in enumerate(self.all or ())]


OPERATIONS: Final[dict[str, Callable[[Runtime, int], Operation]]] = {
    "all-reduce": AllReduce,
    "broadcast": Broadcast,
    "gather": Gather,
}


def _time_slowest_rank(rank_runtime: Runtime, operation: Operation) -> float:
    rank_runtime.barrier()
    start = time.perf_counter()
    operation.run()
    if rank_runtime.device.type == "cuda":
        torch.cuda.synchronize(rank_runtime.device)
    return max(rank_runtime.all_gather(time.perf_counter() - start))
