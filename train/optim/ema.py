"""Keeps an average of the weights, which is evaluated and exported in their place.

Another kind of average is a class with the attributes and methods of `EMA` that have no underscore, and a line in each
function here: nothing else knows which kind it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from train.checkpoint.store import EMA_GROUP
from train.config.schema import TrainConfig


class EMA:
    """An exponential moving average of a network's weights and buffers.

    `tensors` has the average of each floating point tensor of the network's state, by name, on its device; `group` is
    their group in a checkpoint. `every` optimizer steps lie between two updates.

    In the first updates the decay is smaller than `decay`; otherwise the initial weights would stay in
    the average for long (TensorFlow's ExponentialMovingAverage does the same with num_updates).
    """

    group: Final = EMA_GROUP

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

    def _own(self) -> list[Tensor]:
        """The network's own tensors, in the order of `tensors`.

        Buffers are looked up each time: a forward pass may replace one, as in
        `self.mean = 0.9 * self.mean + ...`.
        """
        return [*self._weights.values(), *[module_buffers[key] for module_buffers, key in self._buffers.values()]]


def build_average(train: TrainConfig, network: nn.Module) -> EMA | None:
    """The average that train.ema_decay asks for. network: where it is trained, since the average lies beside it."""
    return None if train.ema_decay is None else EMA(network, train.ema_decay, every=train.ema_every_steps)


def num_copies(train: TrainConfig) -> int:
    """How many times the size of the weights the average takes, in memory and in a checkpoint."""
    return 0 if train.ema_decay is None else 1


def memory_key(train: TrainConfig) -> Any:
    """What distinguishes the average from others whose trials found another micro batch."""
    return train.ema_decay


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
