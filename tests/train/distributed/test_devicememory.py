"""What a trial takes of a device's memory, and how a lack of it is told from other errors."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from train import batch_size
from train.batch_size import GpuMemory

SIGNS = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("CUDA error: out of memory"),
)


def fail(error: Exception) -> None:
    raise error


def test_the_cpu_has_none_that_could_be_tried() -> None:
    assert batch_size.get_device_memory(torch.device("cpu")) is None
    assert batch_size.get_device_memory(torch.device("cuda", 0)) == GpuMemory(torch.device("cuda", 0))


@pytest.mark.parametrize("error", SIGNS, ids=["torch", "cudnn", "driver"])
def test_a_lack_of_memory_is_an_answer(error: RuntimeError) -> None:
    assert not batch_size.fits_in_memory(lambda: fail(error))
    assert batch_size.fits_in_memory(lambda: None)


def test_another_error_is_none() -> None:
    with pytest.raises(RuntimeError, match="shape"):
        batch_size.fits_in_memory(lambda: fail(RuntimeError("shape mismatch")))


def test_what_torch_asked_the_driver_for_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = GpuMemory(torch.device("cuda", 0))
    stand_ins: dict[str, Any] = {
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda device: None,
        "memory_reserved": lambda device: 100,
        "max_memory_reserved": lambda device: 350,
        "mem_get_info": lambda device: (700, 1000),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    assert (memory.free(), memory.taken(lambda: None)) == (700, 250)
    assert memory.taken(lambda: fail(SIGNS[0])) is None
