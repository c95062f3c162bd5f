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

from entrypoint import ExitCode, Failure
from train.distributed.runtime import Runtime

CHUNK_NUMEL: Final = 2**20  # numbers that are widened to 64 bits at once: 8 MiB
# Odd numbers of 64 bits (splitmix64's), as torch takes them.
SPLITMIX_INCREMENT, SPLITMIX_MULTIPLIER_1, SPLITMIX_MULTIPLIER_2 = (
    value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
# Whose memory a bit flips in decides who can tell.
FIX_BY_SUSPECT: Final = {
    "GPUs": "start the same command again without these GPUs, and have their memory tested (nvidia-smi -q -d ECC)",
    "hosts": "start the same command again on other hosts, and have their memory tested (journalctl -k | grep -i mce)",
}
INTEGER_DTYPE_BY_SIZE: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One rank's, by its digest. gpu: its index here and its UUID, empty on the CPU. kind: what kernels depend on."""

    rank: int
    host: str
    gpu: str
    digest: int
    kind: str = ""

    def __str__(self) -> str:
        return f"rank {self.rank} ({', '.join(part for part in (self.host, self.gpu) if part)})"


def check_replicas(runtime: Runtime, net: nn.Module, optimizer: Optimizer, step: int) -> None:
    """Compare the parameters and the optimizer's state of all ranks by their bits; to be called by all.

    Buffers are left out: each rank collects BatchNorm's statistics from its own batches. DDP sends parameters around
    at the start only, so that a bit that has flipped since stays flipped.

    Raises:
        Failure: NODE on a rank that may be the wrong one, PEER on the others, once that one has left: job scripts
            leave out the nodes that say NODE.
    """
    if runtime.control is None:
        return
    digest = int(hash_tensors([*net.parameters(), *optimizer_tensors(optimizer)]).item())
    host, gpu, kind = socket.gethostname(), describe_gpu(runtime.device), processor_name(runtime.device)
    facts = runtime.all_gather((host, gpu, kind, digest))
    replicas = [Replica(rank=rank, host=h, gpu=g, kind=k, digest=d) for rank, (h, g, k, d) in enumerate(facts)]
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
    """Those that most others contradict; all of them where no majority can tell; none where all are the same."""
    (common, count), *others = Counter(replica.digest for replica in replicas).most_common()
    if not others:
        return []
    known = 2 * count > len(replicas)
    return [replica for replica in replicas if not known or replica.digest != common]


def divergence_failure(replicas: Sequence[Replica], suspects: Sequence[Replica], step: int) -> Failure:
    """The end of a run whose replicas are not the same any more."""
    some = ", ".join(map(str, suspects[:8])) + (f" and {len(suspects) - 8} more" if len(suspects) > 8 else "")
    agree = len(replicas) - len(suspects)
    found = f"{some} differ from the other {agree}, which agree" if agree else f"{some} differ: no majority can tell"
    kinds = sorted({replica.kind for replica in replicas})
    fix = FIX_BY_SUSPECT["GPUs" if any(suspect.gpu for suspect in suspects) else "hosts"]
    if len(kinds) > 1:  # each rank clips its gradients by a norm of its own adding up
        fix = f"these round differently: {', '.join(kinds)}. Take one kind, or train.check_replicas_every_steps=null"
    return Failure(
        f"the replicas are not the same any more, seen after step {step}",
        found=found,
        expected="the same parameters on all ranks, bit by bit",
        fix=fix,
        code=ExitCode.NODE,
    )


def hash_tensors(tensors: Iterable[Tensor]) -> Tensor:
    """A hash of all bits, as one int64 on the first tensor's device. No host sync.

    The sum of every number's bits, each times an odd number that belongs to its place, modulo 2**64: one flipped bit
    always changes it, and sums of whole numbers do not depend on their order. Layout (channels last) does not count.
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
    """Its index on this host and its UUID, which does not depend on what is visible; empty on the CPU."""
    if device.type != "cuda":
        return ""
    return f"GPU {device.index}, UUID {torch.cuda.get_device_properties(device).uuid}"


def processor_name(device: torch.device) -> str:
    """What may decide how kernels round."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()


def _as_integers(tensor: Tensor) -> Tensor:
    """Its bits as whole numbers in one row."""
    flat = tensor.detach().reshape(-1)
    return (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).view(
        INTEGER_DTYPE_BY_SIZE[_real_element_size(flat)]
    )


def _real_element_size(flat: Tensor) -> int:
    return flat.element_size() // (2 if flat.is_complex() else 1)


def _odd_weights(places: Tensor) -> Tensor:
    """An odd number for each place, without a pattern."""
    mixed = places * SPLITMIX_INCREMENT
    mixed = (mixed ^ (mixed >> 30)) * SPLITMIX_MULTIPLIER_1
    mixed = (mixed ^ (mixed >> 27)) * SPLITMIX_MULTIPLIER_2
    return mixed | 1
