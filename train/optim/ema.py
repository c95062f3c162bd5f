"""A running average of the weights, one update per optimizer step, and the network that wears it for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """`tensors`: the average of every floating point tensor of the network's state, by name, on its device.

    In the first steps it follows faster than `decay` says, or it would remember the initial weights for long
    (as TensorFlow's ExponentialMovingAverage does with num_updates).
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self._own, self._decay = _floats(network), decay
        self.tensors: dict[str, Tensor] = {name: tensor.clone() for name, tensor in self._own.items()}

    def update(self, step: int) -> None:
        """Take the weights in after `step` (counted from 1) is done. No host sync."""
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.tensors.values()), list(self._own.values()), 1 - decay)

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` held. Raises KeyError or RuntimeError for another network's."""
        for name, tensor in self.tensors.items():
            tensor.copy_(saved[name])

    @contextmanager
    def worn(self) -> Iterator[None]:
        """Inside, the network has the averaged weights; after it, its own again."""
        own = {name: tensor.clone() for name, tensor in self._own.items()}
        self._put(self.tensors)
        try:
            yield
        finally:
            self._put(own)

    def _put(self, values: Mapping[str, Tensor]) -> None:
        for name, tensor in self._own.items():
            tensor.copy_(values[name])


def _floats(network: nn.Module) -> dict[str, Tensor]:
    """Detached views of parameters and buffers, which stay where they are in memory for the whole run."""
    return {name: tensor for name, tensor in network.state_dict().items() if tensor.is_floating_point()}
