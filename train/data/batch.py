"""A `Batch` travels from the readers to the task: a flat dictionary, of which only the task knows every entry.

The task makes it, `image` as it is stored and `label`, of what a source has read (`Task.collate`); its reader adds
`sample`. The loader turns images into float32 [n, *shape.input]. It adds `weight` where samples count differently in
the loss, and `other` and `share` where data.augment mixes neighbours. A reader that keeps all images on the device
passes all of them, and in `row` which ones are meant: so one kernel selects and augments them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# Tensors [n, ...] on the device, but for `sample`: the numbers of the samples in their split, int64 [n] on the CPU.
Batch = dict[str, Any]
# `Task.collate`: makes a batch of what a source has read, and of the labels of these samples.
Collate = Callable[[Any, Tensor], Batch]


def to_device(numbers: Tensor | npt.NDArray[np.int64], device: torch.device) -> Tensor:
    """Copy without waiting: CUDA may wait for its stream if the memory is not pinned."""
    tensor = numbers if isinstance(numbers, Tensor) else torch.from_numpy(numbers)  # as_tensor takes 2 µs longer
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
