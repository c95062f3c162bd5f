"""The replica check compares the bits of parameters and optimizer state on all ranks.

Where they differ, it raises a Failure that names the ranks in the minority.
"""

from __future__ import annotations

import itertools
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from entrypoint import ExitCode, Failure, list_some
from train.distributed.device import gpu_uuid
from train.distributed.runtime import Runtime

CHUNK_NUMEL: Final = 2**20  # numbers that are widened to 64 bits at once: 8 MiB
# Odd numbers of 64 bits (splitmix64's), as torch takes them.
SPLITMIX_INCREMENT, SPLITMIX_MULTIPLIER_1, SPLITMIX_MULTIPLIER_2 = (
    value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
# A bit may have flipped in the memory of a GPU or of a host.
FIX_BY_SUSPECT: Final = {
    "GPUs": "start the same command again without these GPUs, and have their memory tested (nvidia-smi -q -d ECC)",
    "hosts": "start the same command again on other hosts, and have their memory tested (journalctl -k | grep -i mce)",
}
INTEGER_DTYPE_BY_SIZE: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One rank's copy of the weights, by its digest.

    gpu: its index on the host and its UUID, empty on the CPU. processor: its model, by which kernels may round.
    """

    rank: int
    host: str
    gpu: str
    digest: int
    processor: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank} ({', '.join(part for part in (self.host, self.gpu) if part)})"


def check_replicas(runtime: Runtime, net: nn.Module, optimizer: Optimizer, step: int) -> None:
    """Compare the bits of the parameters and of the optimizer's state over all ranks. All ranks call it.

    Buffers are left out: each rank collects BatchNorm's statistics from its own batches. DDP broadcasts the
    parameters only at the start, so a bit that flips later stays flipped.

    Raises:
        Failure: NODE on a rank that may be wrong. PEER on the other ranks, after a wrong rank has left: job
            scripts exclude the nodes with NODE.
    """
    if runtime.cpu_group is None:
        return
    digest = int(hash_tensors([*net.parameters(), *optimizer_tensors(optimizer)]).item())
    host, gpu, processor = socket.gethostname(), describe_gpu(runtime.device), processor_name(runtime.device)
    facts = runtime.all_gather((host, gpu, processor, digest))
    replicas = [Replica(rank=rank, host=h, gpu=g, processor=p, digest=d) for rank, (h, g, p, d) in enumerate(facts)]
    suspects = find_suspects(replicas)
    if not suspects:
        return
    failure = divergence_failure(replicas, suspects, step)
    if runtime.world.rank not in [suspect.rank for suspect in suspects]:
        with suppress(RuntimeError):
            runtime.barrier()  # ends when a suspect has left: the first to leave names the cause
        failure.code = ExitCode.PEER
    raise failure


def find_suspects(replicas: Sequence[Replica]) -> list[Replica]:
    """The ranks that differ from the majority; all ranks if there is no majority; none if all agree."""
    (common, count), *others = Counter(replica.digest for replica in replicas).most_common()
    if not others:
        return []
    has_majority = 2 * count > len(replicas)
    return [replica for replica in replicas if not has_majority or replica.digest != common]


def divergence_failure(replicas: Sequence[Replica], suspects: Sequence[Replica], step: int) -> Failure:
    """The failure of a run whose ranks no longer hold the same weights."""
    some = list_some(suspects, 8)
    agree = len(replicas) - len(suspects)
    difference = (
        f"{some} differ from the other {agree}, which agree" if agree else f"{some} differ: no majority can tell"
    )
    processors = sorted({replica.processor for replica in replicas})
    fix = FIX_BY_SUSPECT["GPUs" if any(suspect.gpu for suspect in suspects) else "hosts"]
    if len(processors) > 1:  # each rank computes the norm that clips its gradients
        fix = (
            f"these round differently: {', '.join(processors)}. Take one kind, or train.check_replicas_every_steps=null"
        )
    return Failure(
        f"the replicas are not the same any more, seen after step {step}",
        found=difference,
        expected="the same parameters on all ranks, bit by bit",
        fix=fix,
        code=ExitCode.NODE,
    )


def hash_tensors(tensors: Iterable[Tensor]) -> Tensor:
    """A hash of all bits, as one int64 on the first tensor's device. No host sync.

    The bits of each number are taken as an integer and multiplied by an odd weight for its position. The hash is
    the sum of all products modulo 2**64. One flipped bit always changes it, and integer sums do not depend on the
    order. The memory layout (channels last) does not count.
    """
    total, pieces, weights = None, itertools.count(), {}
    for words in map(_as_integers, tensors):
        if words.device not in weights:
            weights[words.device] = _odd_weights(torch.arange(1, CHUNK_NUMEL + 1, device=words.device))
        for piece in (words[at : at + CHUNK_NUMEL] for at in range(0, len(words), CHUNK_NUMEL)):
            part = (piece.to(torch.int64) * weights[words.device][: len(piece)]).sum()
            part *= _odd_weights(torch.tensor(CHUNK_NUMEL + 1 + next(pieces))).item()
            total = part if total is None else total + part.to(total.device)
    return torch.zeros((), dtype=torch.int64) if total is None else total


def optimizer_tensors(optimizer: Optimizer) -> list[Tensor]:
    """The optimizer's tensors, in the order of its parameters."""
    states: list[Mapping[str, Any]] = [
        optimizer.state[parameter]
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter in optimizer.state
    ]
    return [state[name] for state in states for name in sorted(state) if isinstance(state[name], Tensor)]


def describe_gpu(device: torch.device) -> str:
    """The GPU's index on this host and its UUID, which CUDA_VISIBLE_DEVICES does not change; empty on the CPU."""
    if device.type != "cuda":
        return ""
    return f"GPU {device.index}, UUID {gpu_uuid(device)}"


def processor_name(device: torch.device) -> str:
    """The model of the processor, which may decide how kernels round."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()


def _as_integers(tensor: Tensor) -> Tensor:
    """The tensor's bits as integers in one dimension."""
    flat = tensor.detach().reshape(-1)
    real = torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat
    return real.view(INTEGER_DTYPE_BY_SIZE[real.element_size()])


def _odd_weights(positions: Tensor) -> Tensor:
    """A pseudorandom odd number for each position."""
    mixed = positions * SPLITMIX_INCREMENT
    mixed = (mixed ^ (mixed >> 30)) * SPLITMIX_MULTIPLIER_1
    mixed = (mixed ^ (mixed >> 27)) * SPLITMIX_MULTIPLIER_2
    return mixed | 1
