"""With `train.reproducible: bitwise`, gradients, BatchNorm statistics and sums do not depend on the
number of ranks.

The values of all micro batches of a step are summed in one fixed binary tree.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm

from entrypoint import ExitCode, Failure, World


class ReductionTree:
    """The leaves are the micro batches of a step in their order, each a list of tensors of always the same shapes.

    A rank has so many neighbours of a power of two, and so do the ranks: the lower part of the tree lies inside a
    rank, where one sum for each level waits for its neighbour, the upper part across ranks, where both of a pair add
    what both had. a + b is b + a, bit by bit, so that all ranks hold the same sum.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._partners = [rank ^ (1 << level) for level in range(world_size.bit_length() - 1)]
        self._waiting: list[tuple[int, list[Tensor]]] = []

    def add(self, leaf: list[Tensor]) -> None:
        """Take the next leaf in. Its tensors are the tree's from now on."""
        size = 1
        while self._waiting and self._waiting[-1][0] == size:
            _, left = self._waiting.pop()
            torch._foreach_add_(left, leaf)
            leaf, size = left, 2 * size
        self._waiting.append((size, leaf))

    def total(self) -> list[Tensor]:
        """The sum of all leaves of all ranks; the tree is empty then. All ranks call it together."""
        ((_, sums),) = self._waiting
        self._waiting = []
        return self._over_ranks(sums) if self._partners else sums

    def _over_ranks(self, sums: list[Tensor]) -> list[Tensor]:
        """In one piece for each type of numbers: many small messages would take longer."""
        kinds = dict.fromkeys(tensor.dtype for tensor in sums)
        flats = [torch.cat([tensor.reshape(-1) for tensor in sums if tensor.dtype == kind]) for kind in kinds]
        for partner in self._partners:
            torch._foreach_add_(flats, exchange_tensors(flats, partner))
        sizes = ([tensor.numel() for tensor in sums if tensor.dtype == kind] for kind in kinds)
        pieces = {kind: iter(torch.split(flat, size)) for kind, flat, size in zip(kinds, flats, sizes, strict=True)}
        return [next(pieces[tensor.dtype]).view(tensor.shape) for tensor in sums]


def exchange_tensors(mine: list[Tensor], partner: int) -> list[Tensor]:
    """What `partner` has in the place of `mine`, which it gets in turn."""
    theirs = [torch.empty_like(tensor) for tensor in mine]
    sends = [dist.P2POp(dist.isend, tensor, partner) for tensor in mine]
    receipts = [dist.P2POp(dist.irecv, tensor, partner) for tensor in theirs]
    for work in dist.batch_isend_irecv([*sends, *receipts]):
        work.wait()
    return theirs


class RunningStatistics:
    """While a step lasts, the buffers hold one micro batch's mean and variance; after it what torch would have made of
    them with one update: (1 - momentum) x before + momentum x their mean.

    Torch's own order, one update for each micro batch, cannot be cut into ranks.
    """

    def __init__(self, net: nn.Module) -> None:
        found = [module for module in net.modules() if isinstance(module, _BatchNorm)]
        self._norms = [norm for norm in found if norm.running_mean is not None]
        self._momenta = [norm.momentum for norm in self._norms]
        self._before: list[list[Tensor]] = []
        for norm in self._norms:
            norm.momentum = 1.0  # into zeros: what is there afterwards is the batch's own

    @staticmethod
    def names(net: nn.Module) -> set[str]:
        """The names of all buffers that it is about."""
        norms = {name: module for name, module in net.named_modules() if isinstance(module, _BatchNorm)}
        return {f"{name}.{buffer}".lstrip(".") for name, norm in norms.items() for buffer, _ in norm.named_buffers()}

    def open(self) -> None:
        """Before the first micro batch of a step. Norms that a model has frozen are left alone."""
        self._before = [[buffer.clone() for buffer in _buffers(norm)] if norm.training else [] for norm in self._norms]
        self._clear()

    def taken(self) -> list[Tensor]:
        """The last micro batch's mean, variance, and whether it came here (1 or 0), for each norm."""
        leaf = []
        for norm in self._training():
            mean, variance, used = _buffers(norm)
            leaf += [mean.clone(), variance.clone(), used.clamp(max=1).to(mean.dtype)]
        self._clear()
        return leaf

    def settle(self, sums: list[Tensor]) -> None:
        """After the last: `sums` is what `taken` gave, added up over all micro batches of the step."""
        left = iter(sums)
        for norm, momentum, before in zip(self._norms, self._momenta, self._before, strict=True):
            if before:
                _update_statistics(norm, momentum, before, [next(left) for _ in before])

    def _training(self) -> list[_BatchNorm]:
        return [norm for norm, before in zip(self._norms, self._before, strict=True) if before]

    def _clear(self) -> None:
        for norm in self._training():
            for buffer in _buffers(norm):
                buffer.zero_()


def _buffers(norm: _BatchNorm) -> list[Tensor]:
    found = norm.running_mean, norm.running_var, norm.num_batches_tracked
    return [buffer for buffer in found if buffer is not None]


def _update_statistics(norm: _BatchNorm, momentum: float | None, before: list[Tensor], sums: list[Tensor]) -> None:
    """A norm that no micro batch came to keeps what it had. No host sync."""
    used, count = (sums[2] > 0), sums[2].clamp(min=1)
    tracked = before[2] + used
    part = (1 / tracked.clamp(min=1) if momentum is None else torch.full_like(count, momentum)) * used
    for buffer, old, summed in zip(_buffers(norm), before[:2], sums, strict=False):
        buffer.copy_(old.lerp(summed / count, part.to(old.dtype)))
    _buffers(norm)[2].copy_(tracked)


class BitwiseReducer:
    """Gradients, BatchNorm's statistics and the sums for the record of all micro batches of a step, added up in one
    tree. No gradient is added to another in `.grad`, where the order would depend on the number of ranks.
    """

    def __init__(self, net: nn.Module, world: World, *, micro_batches: int) -> None:
        """Raises Failure (USAGE) for a network that no tree can add up. `micro_batches`: of a global batch."""
        if any(isinstance(module, nn.SyncBatchNorm) for module in net.modules()):
            raise _unfit("its SyncBatchNorm adds up over the micro batches that ranks compute at the same time")
        self._parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
        self._statistics = RunningStatistics(net)
        self._tree = ReductionTree(world.rank, world.world_size)
        self._micro_batches = micro_batches

    def begin_step(self) -> None:
        """Before the first micro batch of a step."""
        self._statistics.open()

    def add(self, sums: Tensor) -> None:
        """After each micro batch's backward; `sums` [n]: what else is to be added up."""
        gradients = [_taken(parameter) for parameter in self._parameters]
        self._tree.add([*gradients, sums.float(), *self._statistics.taken()])

    def finish_step(self) -> Tensor:
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
