"""A device with as much memory as a test says: what the backward pass keeps is counted, and refused beyond that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from train import batch_size


class Kept:
    """A tensor that waits for the backward pass."""

    def __init__(self, tensor: Tensor, memory: Pretended) -> None:
        self.tensor, self.memory = tensor, memory
        memory.held += tensor.nbytes
        memory.most = max(memory.most, memory.held)

    def __del__(self) -> None:
        self.memory.held -= self.tensor.nbytes


@dataclass(slots=True)
class Pretended:
    """room: bytes. tried: how often something was. As `batch_size.GpuMemory`."""

    room: int
    name: str = "pretended"
    tried: int = 0
    held: int = 0
    most: int = 0
    peaks: list[int] = field(default_factory=list)

    def free(self) -> int:
        return self.room

    def taken(self, attempt: Callable[[], None]) -> int | None:
        self.tried, self.held, self.most = self.tried + 1, 0, 0
        with torch.autograd.graph.saved_tensors_hooks(self._keep, lambda kept: kept.tensor):
            fits = batch_size.fits_in_memory(attempt)
        self.peaks.append(self.most)
        return self.most if fits else None

    def _keep(self, tensor: Tensor) -> Kept:
        kept = Kept(tensor, self)
        if self.held > self.room:
            raise torch.OutOfMemoryError(f"pretended memory: {self.held} of {self.room} bytes")
        return kept
