"""Keeps an exponential moving average of the weights, and swaps it into the model temporarily.

The average is updated once per optimizer step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class EMA:
    """`tensors`: the average of every floating point tensor of the network's state, by name, on its device.

    In the first steps it follows faster than `decay` says, or it would remember the initial weights for long
    (as TensorFlow's ExponentialMovingAverage does with num_updates).
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self._weights, self._buffers = _floating_point_state(network)
        self._decay = decay
        names = [*self._weights, *self._buffers]
        self.tensors: dict[str, Tensor] = {name: t.detach().clone() for name, t in zip(names, self._own(), strict=True)}

    def update(self, step: int) -> None:
        """Take the weights in after `step` (counted from 1) is done. No host sync."""
        decay = min(self._decay, (1 + step) / (10 + step))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.tensors.values()), self._own(), 1 - decay)

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Put back what `tensors` held. Raises KeyError or RuntimeError for another network's."""
        for name, tensor in self.tensors.items():
            tensor.copy_(saved[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Inside, the network has the averaged weights; after it, its own again."""
        own = [tensor.detach().clone() for tensor in self._own()]
        self._put(self.tensors.values())
        try:
            yield
        finally:
            self._put(own)

    def _own(self) -> list[Tensor]:
        """The network's, in the order of `tensors`. Buffers as they are now: a forward pass may put a new tensor in the
        place of one (`self.mean = 0.9 * self.mean + ...`).
        """
        return [*self._weights.values(), *[place[key] for place, key in self._buffers.values()]]

    @torch.no_grad()
    def _put(self, values: Iterable[Tensor]) -> None:
        for tensor, value in zip(self._own(), values, strict=True):
            tensor.copy_(value)


BufferSlot = tuple[Mapping[str, Any], str]  # where a module keeps its buffers, and the name of one there


def _floating_point_state(network: nn.Module) -> tuple[dict[str, Tensor], dict[str, BufferSlot]]:
    """By name: detached views of the parameters, which stay where they are in memory for the whole run; and where the
    buffers of the state are.
    """
    state = {name: tensor for name, tensor in network.state_dict(keep_vars=True).items() if tensor.is_floating_point()}
    kept: dict[int, BufferSlot] = {
        id(tensor): (one._buffers, key) for one in network.modules() for key, tensor in one._buffers.items()
    }
    buffers = {name: kept[id(tensor)] for name, tensor in state.items() if id(tensor) in kept}
    return {name: tensor.detach() for name, tensor in state.items() if name not in buffers}, buffers
