"""The numbers of a step that do not depend on how many ranks compute it: train.reproducible bitwise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from entrypoint import ExitCode, Failure, World
from train.models.runningstats import RunningStatistics
from train.ranks.tree import Tree


class Exact:
    """Gradients, BatchNorm's statistics and the sums for the record of all micro batches of a step, added up in one
    tree. No gradient is added to another in `.grad`, where the order would depend on the number of ranks.
    """

    def __init__(self, net: nn.Module, world: World, *, micro_batches: int) -> None:
        """Raises Failure (USAGE) for a network that no tree can add up. `micro_batches`: of a global batch."""
        if any(isinstance(module, nn.SyncBatchNorm) for module in net.modules()):
            raise _unfit("its SyncBatchNorm adds up over the micro batches that ranks compute at the same time")
        self._parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
        self._statistics = RunningStatistics(net)
        self._tree = Tree(world.rank, world.world_size)
        self._micro_batches = micro_batches

    def open(self) -> None:
        """Before the first micro batch of a step."""
        self._statistics.open()

    def add(self, sums: Tensor) -> None:
        """After each micro batch's backward; `sums` [n]: what else is to be added up."""
        gradients = [_taken(parameter) for parameter in self._parameters]
        self._tree.add([*gradients, sums.float(), *self._statistics.taken()])

    def close(self) -> Tensor:
        """After the last: set every `.grad` to the mean over all micro batches; returns the total of `sums`."""
        found = self._tree.total()
        own = len(self._parameters)
        for parameter, gradient in zip(self._parameters, found[:own], strict=True):
            # In memory of its own, laid out as the parameter: in which order a kernel adds may depend on both.
            parameter.grad = torch.empty_like(parameter).copy_(gradient).div_(self._micro_batches)
        self._statistics.settle(found[own + 1 :])
        return found[own]


def refuse_hidden_state(model: nn.Module, images: Tensor) -> None:
    """Refuse a model that remembers more of its batches than BatchNorm does: each rank would remember its own.

    Raises:
        Failure: USAGE, naming the buffer.
    """
    kept = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    with torch.no_grad():
        model(images)
    now = dict(model.named_buffers())  # as they are: a forward pass may put a new tensor in the place of one
    changed = [name for name, (_, before) in kept.items() if name not in now or not torch.equal(now[name], before)]
    for name, (buffer, before) in kept.items():
        module, _, key = name.rpartition(".")
        model.get_submodule(module)._buffers[key] = buffer.copy_(before)
    if hidden := set(changed) - RunningStatistics.names(model):
        raise _unfit(f"each forward pass changes its {min(hidden)}, which is no BatchNorm's")


def _taken(parameter: nn.Parameter) -> Tensor:
    """The gradient, which is gone from `.grad` then. A part of the network that was not used has zeros: with one
    micro batch or another it may be used, and the tree is the same in every step.
    """
    gradient, parameter.grad = parameter.grad, None
    return torch.zeros_like(parameter) if gradient is None else gradient


def _unfit(found: str) -> Failure:
    return Failure(
        "this model cannot be trained with train.reproducible bitwise",
        found=found,
        expected="what a model keeps from its batches, except BatchNorm's statistics, comes from gradients alone",
        fix="set train.reproducible=fast, or take another model",
        code=ExitCode.USAGE,
    )
