"""Times an all-reduce of known numbers over all ranks, and verifies the sum."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch
from torch import Tensor
from torch import distributed as dist

from entrypoint import ExitCode, Failure, World
from train.distributed.device import failure_from_error, summarize_error

NUM_REPEATS = 5
TENSOR_MIB = {"cpu": 16, "cuda": 256}  # long enough for the speed of the wire to show
_PATTERN_PERIOD = 7  # numbers differ along the tensor, so that a misplaced piece shows


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceResult:
    """The time of one all-reduce.

    bytes_per_s: of the bus, as NCCL's own tests count it; 0 for a single rank, which sends nothing.
    """

    backend: str
    ranks: int
    mib: int
    seconds: float
    bytes_per_s: float


def measure_all_reduce(world: World, device: torch.device, store: dist.Store, timeout_s: float) -> AllReduceResult:
    """Open a process group, sum known numbers, check the sums and time them. All ranks call it.

    Raises:
        Failure: NODE if a sum is wrong or a GPU fails; RESOURCE if memory is short; PEER if a rank is lost.
    """
    backend, mib = "nccl" if device.type == "cuda" else "gloo", TENSOR_MIB[device.type]
    try:
        dist.init_process_group(
            backend,
            store=dist.PrefixStore("smoke", store),
            rank=world.rank,
            world_size=world.world_size,
            timeout=timedelta(seconds=timeout_s),
        )
        try:
            seconds = statistics.median(
                _time_all_reduce(world, device, mib, dist.all_reduce) for _ in range(NUM_REPEATS)
            )
        finally:
            dist.destroy_process_group()
    except (RuntimeError, dist.DistError) as error:
        raise failure_from_error(error) or _all_reduce_failure(world, backend, error) from error
    sent = 2 * (world.world_size - 1) / world.world_size * mib * 2**20
    return AllReduceResult(
        backend=backend, ranks=world.world_size, mib=mib, seconds=seconds, bytes_per_s=sent / seconds
    )


def _time_all_reduce(world: World, device: torch.device, mib: int, reduce: Callable[[Tensor], object]) -> float:
    """Seconds of one all-reduce, whose sum is then checked."""
    numbers = make_rank_tensor(world.rank, mib, device)
    _synchronize(device)
    began = time.perf_counter()
    reduce(numbers)
    _synchronize(device)
    taken = time.perf_counter() - began
    refuse_wrong_sum(numbers, world)
    return taken


def make_rank_tensor(rank: int, mib: int, device: torch.device) -> Tensor:
    """The numbers [mib x 2^18] that one rank contributes: integers, which fp32 sums without rounding."""
    pattern = torch.arange(mib * 2**18, device=device, dtype=torch.float32) % _PATTERN_PERIOD + 1
    return pattern * (rank + 1)


def refuse_wrong_sum(numbers: Tensor, world: World) -> None:
    """Check every number of the sum.

    Raises:
        Failure: NODE, with the first wrong number.
    """
    total = world.world_size * (world.world_size + 1) // 2
    mib = numbers.numel() // 2**18
    expected = make_rank_tensor(0, mib, numbers.device) * total
    wrong = (numbers != expected).nonzero()
    if len(wrong) == 0:
        return
    at = int(wrong[0])
    raise Failure(
        f"rank {world.rank} on {socket.gethostname()} got a wrong sum from the all-reduce",
        found=f"{len(wrong)} of {numbers.numel()} numbers differ; number {at} is {numbers[at].item():g}",
        expected=f"{expected[at].item():g}",
        fix="leave this node out (srun --exclude) and report it; on Slingshot: NCCL_PROTO=^LL128",
        code=ExitCode.NODE,
    )


def gpu_uuid(device: torch.device) -> str:
    """A GPU's UUID, which shows whether two ranks use the same GPU; empty on the CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _all_reduce_failure(world: World, backend: str, error: Exception) -> Failure:
    return Failure(
        f"rank {world.rank} on {socket.gethostname()} could not exchange numbers over {backend}",
        found=summarize_error(error),
        fix="look at the first rank that failed; NCCL_DEBUG=INFO says which way its data took",
        code=ExitCode.PEER,
    )
