"""How much memory a device has left, and how much a trial of something takes of it."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import torch

from train.ranks import devicefaults

# In a trial cuDNN's word for having found no way, mostly for want of memory; elsewhere it may mean what it says.
NO_WAY: Final = "CUDNN_STATUS_NOT_SUPPORTED"


class Memory(Protocol):
    """The memory of one device."""

    @property
    def name(self) -> str:
        """The device's, and how much it has in all: what a trial's result holds for."""

    def free(self) -> int:
        """Bytes that this process may still take."""

    def taken(self, attempt: Callable[[], None]) -> int | None:
        """Bytes that `attempt` held at most, and gave back; None where there were not as many."""


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """A GPU's, as torch and the driver count it."""

    device: torch.device

    @property
    def name(self) -> str:
        """NVIDIA H200, 139.8 GiB."""
        facts = torch.cuda.get_device_properties(self.device)
        return f"{facts.name}, {facts.total_memory / 2**30:.1f} GiB"

    def free(self) -> int:
        """What nobody has: neither another process nor a tensor of this one."""
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self.device)[0]

    def taken(self, attempt: Callable[[], None]) -> int | None:
        """What torch asked the driver for: more than its tensors have, and what counts."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_reserved(self.device)
        fits = fitted(attempt)
        most = torch.cuda.max_memory_reserved(self.device)
        gc.collect()  # a network may hold itself
        torch.cuda.empty_cache()
        return most - before if fits else None


def of(device: torch.device) -> Memory | None:
    """A GPU's memory. None for the CPU: the host pages and kills, it does not refuse."""
    return GpuMemory(device) if device.type == "cuda" else None


def fitted(attempt: Callable[[], None]) -> bool:
    """Whether `attempt` came to its end. The error, which holds on to all its tensors, is gone by then.

    Raises:
        Exception: whatever is no lack of memory.
    """
    try:
        attempt()
    except RuntimeError as error:
        if not devicefaults.is_full(error) and NO_WAY not in str(error):
            raise
        return False
    return True
