"""One rank that sends numbers to the others by all-reduce, broadcast and gather, compares what comes, and times it."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor
from torch import distributed as dist

from entrypoint import ExitCode, Failure, attach_heartbeat, world_from_environ
from train.config import environment, load
from train.distributed import runtime
from train.distributed.runtime import Runtime

PERIOD: Final = 97  # of the numbers: small, so that their sums are exact
PATIENCE_S: Final = 1.0  # for one size of one operation
MOST: Final = 50


def main(words: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """`--result FILE --sizes BYTES ...`; rank 0 leaves the file."""
    arguments = build_parser().parse_args(words)
    world, pulse = world_from_environ(environ), attach_heartbeat(environ)
    environment.remove_conflicting_variables(environ, download=False)
    ready = runtime.start(load.load_config(None), world, environ, accumulation=1)
    try:
        seconds = {name: [(size, measured(ready, name, size)) for size in arguments.sizes] for name in OPERATIONS}
    finally:
        ready.close()
    if ready.is_main:
        measurement = {
            "ranks": world.world_size,
            "nodes": world.num_nodes,
            "device": ready.device.type,
            "seconds": seconds,
        }
        Path(arguments.result).write_text(json.dumps(measurement))
    pulse.beat("end")


def build_parser() -> argparse.ArgumentParser:
    """The command line that `train bench comm` writes."""
    parser = argparse.ArgumentParser(prog="train.bench.exchange", allow_abbrev=False)
    parser.add_argument("--result", metavar="FILE", required=True)
    parser.add_argument("--sizes", metavar="BYTES", type=int, nargs="+", required=True)
    return parser


def measured(ready: Runtime, name: str, size: int) -> float:
    """Seconds that the slowest rank needs: the median over as many times as fit into a second.

    Raises:
        Failure: NODE, on a rank that was given wrong numbers.
    """
    operation = OPERATIONS[name](ready, max(1, size // 4))
    operation.check(name)
    first = _slowest(ready, operation)
    times = max(3, min(MOST, int(PATIENCE_S / max(first, 1e-6))))
    return median(_slowest(ready, operation) for _ in range(int(ready.run_on_rank_zero(lambda: times))))


class Operation:
    """Buffers of so many fp32 numbers on each rank, and what is to be in them afterwards."""

    def __init__(self, ready: Runtime, numbers: int) -> None:
        self.ready, self.world, self.rank = ready, ready.world.world_size, ready.world.rank
        self.pattern = torch.arange(numbers, device=ready.device).remainder_(PERIOD).float()
        self.own = self.pattern + self.rank

    def run(self) -> None:
        """Once."""
        raise NotImplementedError

    def came(self) -> list[tuple[Tensor, Tensor]]:
        """(received, expected) after the first time."""
        raise NotImplementedError

    def check(self, name: str) -> None:
        """Raises Failure: NODE."""
        self.run()
        wrong = sum(int((received != expected).sum()) for received, expected in self.came())
        if wrong:
            raise Failure(
                f"numbers are wrong after a {name}",
                found=f"{wrong} of them on rank {self.rank}, of {self.own.numel()} that each rank gave",
                fix="leave this node out, and have its memory, GPU and network checked",
                code=ExitCode.NODE,
            )


class AllReduce(Operation):
    """The sum of all, everywhere. Later sums grow, and are not looked at."""

    def run(self) -> None:
        """In place."""
        dist.all_reduce(self.own)

    def came(self) -> list[tuple[Tensor, Tensor]]:
        """The pattern so many times, and the ranks' numbers."""
        return [(self.own, self.pattern * self.world + self.world * (self.world - 1) / 2)]


class Broadcast(Operation):
    """Rank 0's, everywhere."""

    def run(self) -> None:
        """In place."""
        dist.broadcast(self.own, src=0)

    def came(self) -> list[tuple[Tensor, Tensor]]:
        """Rank 0 adds nothing to the pattern."""
        return [(self.own, self.pattern)]


class Gather(Operation):
    """Everyone's, on rank 0."""

    def __init__(self, ready: Runtime, numbers: int) -> None:
        super().__init__(ready, numbers)
        self.all = [torch.zeros_like(self.own) for _ in range(self.world)] if self.rank == 0 else None

    def run(self) -> None:
        """Into other buffers."""
        dist.gather(self.own, self.all, dst=0)

    def came(self) -> list[tuple[Tensor, Tensor]]:
        """Each rank's, in their order."""
        return [(received, self.pattern + rank) for rank, received in enumerate(self.all or ())]


OPERATIONS: Final[dict[str, Callable[[Runtime, int], Operation]]] = {
    "all-reduce": AllReduce,
    "broadcast": Broadcast,
    "gather": Gather,
}


def _slowest(ready: Runtime, operation: Operation) -> float:
    ready.barrier()
    began = time.perf_counter()
    operation.run()
    if ready.device.type == "cuda":
        torch.cuda.synchronize(ready.device)
    took: Any = time.perf_counter() - began
    return max(ready.all_gather(float(took)))
