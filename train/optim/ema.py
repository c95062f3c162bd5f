"""Keeps an exponential moving average of the weights, and swaps it into the model temporarily.

The average is updated after each optimizer step, or after every so many.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from train.config.schema import TrainConfig


class EMA:
    """An exponential moving average of a network's weights and buffers.

    tensors: the average of each floating point tensor of the network's state, by name, on its device.

    every: the optimizer steps between two updates.

    In the first updates the decay is smaller than `decay`; otherwise the initial weights would stay in
    the average for long (TensorFlow's ExponentialMovingAverage does the same with num_updates).
    """

    def __init__(self, network: nn.Module, decay: float, *, every: int = 1) -> None:
        self._weights, self._buffers = _floating_point_state(network)
        self._decay, self._every = decay, every
        names = [*self._weights, *self._buffers]
        self.tensors: dict[str, Tensor] = {name: t.detach().clone() for name, t in zip(names, self._own(), strict=True)}

    def update(self, step: int) -> None:
        """Add the weights after `step` (counted from 1), if an update is due. It does not wait for the GPU."""
        if step % self._every:
            return
        updates = step // self._every
        decay = min(self._decay, (1 + updates) / (10 + updates))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.tensors.values()), self._own(), 1 - decay)

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Restore `tensors` from a checkpoint. Raises KeyError or RuntimeError for another network's."""
        for name, tensor in self.tensors.items():
            tensor.copy_(saved[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Swap the averaged weights into the network; afterwards restore its own."""
        own = [tensor.detach().clone() for tensor in self._own()]
        self._put(self.tensors.values())
        try:
            yield
        finally:
            self._put(own)

    def _own(self) -> list[Tensor]:
        """The network's own tensors, in the order of `tensors`.

        Buffers are looked up each time: a forward pass may replace one, as in
        `self.mean = 0.9 * self.mean + ...`.
        """
        return [*self._weights.values(), *[module_buffers[key] for module_buffers, key in self._buffers.values()]]

    @torch.no_grad()
    def _put(self, values: Iterable[Tensor]) -> None:
        for tensor, value in zip(self._own(), values, strict=True):
            tensor.copy_(value)


def build_average(train: TrainConfig, network: nn.Module) -> EMA | None:
    """The average that train.ema_decay asks for. network: where it is trained, since the average lies beside it."""
    return None if train.ema_decay is None else EMA(network, train.ema_decay, every=train.ema_every_steps)


BufferSlot = tuple[Mapping[str, Any], str]  # a module's dict of buffers, and the name of a buffer in it


def _floating_point_state(network: nn.Module) -> tuple[dict[str, Tensor], dict[str, BufferSlot]]:
    """(parameters, buffers) of the network's state, by name.

    Parameters are detached views, since they keep their memory for the whole run. Buffers are slots.
    """
    state = {name: tensor for name, tensor in network.state_dict(keep_vars=True).items() if tensor.is_floating_point()}
    kept: dict[int, BufferSlot] = {
        id(tensor): (module._buffers, key) for module in network.modules() for key, tensor in module._buffers.items()
    }
    buffers = {name: kept[id(tensor)] for name, tensor in state.items() if id(tensor) in kept}
    return {name: tensor.detach() for name, tensor in state.items() if name not in buffers}, buffers
