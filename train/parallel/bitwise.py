"""With `train.reproducible: bitwise`, gradients, BatchNorm statistics and sums do not depend on the
number of ranks.

The values of all micro batches of a step are summed in one fixed binary tree.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from entrypoint import ExitCode, Failure
from train.parallel.base import Parallel
from train.tasks.base import StepLoss


class ReductionTree:
    """A binary tree that sums the micro batches of a step in a fixed order.

    Each leaf is one micro batch: a list of tensors, whose shapes never change. The number of micro
    batches per rank and the number of ranks are powers of two. The lower part of the tree lies
    inside a rank, where on each level one sum waits for its neighbour. The upper part lies across
    ranks, where the two ranks of a pair both add both sums. a + b equals b + a bit by bit, so all
    ranks hold the same sum.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self._partners = [rank ^ (1 << level) for level in range(world_size.bit_length() - 1)]
        self._waiting: list[tuple[int, list[Tensor]]] = []

    def add(self, leaf: list[Tensor]) -> None:
        """Add the next leaf. The tree may change its tensors from now on."""
        size = 1
        while self._waiting and self._waiting[-1][0] == size:
            _, left = self._waiting.pop()
            torch._foreach_add_(left, leaf)
            leaf, size = left, 2 * size
        self._waiting.append((size, leaf))

    def total(self) -> list[Tensor]:
        """Return the sum of all leaves of all ranks, and empty the tree. All ranks call it."""
        ((_, sums),) = self._waiting
        self._waiting = []
        return self._over_ranks(sums) if self._partners else sums

    def _over_ranks(self, sums: list[Tensor]) -> list[Tensor]:
        """Send one tensor for each dtype: many small messages would take longer."""
        dtypes = dict.fromkeys(tensor.dtype for tensor in sums)
        flats = [torch.cat([tensor.reshape(-1) for tensor in sums if tensor.dtype == dtype]) for dtype in dtypes]
        for partner in self._partners:
            torch._foreach_add_(flats, exchange_tensors(flats, partner))
        sizes = ([tensor.numel() for tensor in sums if tensor.dtype == dtype] for dtype in dtypes)
        pieces = {dtype: iter(torch.split(flat, size)) for dtype, flat, size in zip(dtypes, flats, sizes, strict=True)}
        return [next(pieces[tensor.dtype]).view(tensor.shape) for tensor in sums]


def exchange_tensors(tensors: list[Tensor], partner: int) -> list[Tensor]:
    """Swap tensors with the rank `partner`: send it these, and return its own."""
    theirs = [torch.empty_like(tensor) for tensor in tensors]
    sends = [dist.P2POp(dist.isend, tensor, partner) for tensor in tensors]
    receipts = [dist.P2POp(dist.irecv, tensor, partner) for tensor in theirs]
    for work in dist.batch_isend_irecv([*sends, *receipts]):
        work.wait()
    return theirs


class RunningStatistics:
    """BatchNorm's running statistics, updated once per step from the mean over all micro batches.

    During a step the buffers hold the mean and variance of one micro batch. After it they hold
    (1 - momentum) x before + momentum x mean over the micro batches. torch updates them once per
    micro batch instead, in an order that cannot be divided among ranks.
    """

    def __init__(self, net: nn.Module) -> None:
        batch_norms = [module for module in net.modules() if isinstance(module, _BatchNorm)]
        self._norms = [norm for norm in batch_norms if norm.running_mean is not None]
        self._momenta = [norm.momentum for norm in self._norms]
        self._step: list[tuple[_BatchNorm, float | None, list[Tensor]]] = []
        for norm in self._norms:
            norm.momentum = 1.0  # the buffers are zeroed before: afterwards they hold the batch's own values

    @staticmethod
    def names(net: nn.Module) -> set[str]:
        """The names of all BatchNorm buffers of the network."""
        norms = {name: module for name, module in net.named_modules() if isinstance(module, _BatchNorm)}
        return {f"{name}.{buffer}".lstrip(".") for name, norm in norms.items() for buffer, _ in norm.named_buffers()}

    def open(self) -> None:
        """Begin a step. BatchNorm layers that the model has frozen are left alone."""
        self._step = [
            (norm, momentum, [buffer.clone() for buffer in _buffers(norm)])
            for norm, momentum in zip(self._norms, self._momenta, strict=True)
            if norm.training
        ]
        self._clear()

    def taken(self) -> list[Tensor]:
        """For each layer: the last micro batch's mean and variance, and 1 if it used the layer, else 0."""
        leaf = []
        for norm, _, _ in self._step:
            mean, variance, used = _buffers(norm)
            leaf += [mean.clone(), variance.clone(), used.clamp(max=1).to(mean.dtype)]
        self._clear()
        return leaf

    def update(self, sums: list[Tensor]) -> None:
        """End a step. sums: the values of `taken`, summed over all micro batches of the step."""
        left = iter(sums)
        for norm, momentum, before in self._step:
            _update_statistics(norm, momentum, before, [next(left) for _ in before])

    def _clear(self) -> None:
        for norm, _, _ in self._step:
            for buffer in _buffers(norm):
                buffer.zero_()


def _buffers(norm: _BatchNorm) -> list[Tensor]:
    buffers = norm.running_mean, norm.running_var, norm.num_batches_tracked
    return [buffer for buffer in buffers if buffer is not None]


def _update_statistics(norm: _BatchNorm, momentum: float | None, before: list[Tensor], sums: list[Tensor]) -> None:
    """Update one layer. A layer that no micro batch used keeps its statistics. No host sync."""
    used, count = (sums[2] > 0), sums[2].clamp(min=1)
    tracked = before[2] + used
    part = (1 / tracked.clamp(min=1) if momentum is None else torch.full_like(count, momentum)) * used
    for buffer, old, summed in zip(_buffers(norm), before[:2], sums, strict=False):
        buffer.copy_(old.lerp(summed / count, part.to(old.dtype)))
    _buffers(norm)[2].copy_(tracked)


class Bitwise(Parallel):
    """Ranks that sum a step's gradients, BatchNorm statistics and logged values in one tree.

    No gradient is accumulated in `.grad`, where the order would depend on the number of ranks.
    """

    fixes_micro_batch = True

    def wrap(self, network: nn.Module, optimizer: Optimizer) -> None:
        """Without DDP. BatchNorm no longer updates its statistics itself."""
        super().wrap(network, optimizer)
        self._accelerator.gradient_accumulation_steps = 1  # the sum over all ranks is divided, not each loss
        self.losses_per_step = 1
        self._tree = ReductionTree(self.runtime.world.rank, self.runtime.world.world_size)
        self._statistics = RunningStatistics(network)
        self.parameters_changed()

    def parameters_changed(self) -> None:
        """Sum the gradients of the parameters that require them now."""
        self._parameters = [parameter for parameter in self.network.parameters() if parameter.requires_grad]

    def warm_up(self) -> None:
        """Refuse a network whose state the tree would not sum. There are no buckets to order."""
        self.refuse_unfit_network(self.model, self.example_loss)

    @staticmethod
    def refuse_unfit_network(network: nn.Module, example_loss: Callable[[nn.Module], StepLoss]) -> None:
        """Refuse a network that keeps something of its batches which the tree would not sum: ranks would differ.

        Raises:
            Failure: USAGE for SyncBatchNorm, and for other buffers than BatchNorm's that a forward pass changes.
        """
        if any(isinstance(module, nn.SyncBatchNorm) for module in network.modules()):
            raise _unfit("its SyncBatchNorm adds up over the micro batches that ranks compute at the same time")
        _refuse_hidden_state(network, example_loss)

    def accumulate(self, compute: Callable[[], StepLoss]) -> list[StepLoss]:
        """Set every `.grad` to the mean over all micro batches, whichever rank computes them.

        Each rank returns one entry, of the global batch. It counts on rank 0 alone.
        """
        self._statistics.open()
        for _ in range(self.batches.accumulation):
            step_loss = self._add_gradients(compute)
            gradients = [_remove_gradient(parameter) for parameter in self._parameters]
            self._tree.add([*gradients, _sum_values(step_loss).float(), *self._statistics.taken()])
        totals, own = self._tree.total(), len(self._parameters)
        for parameter, gradient in zip(self._parameters, totals[:own], strict=True):
            # In new memory, with the parameter's layout: the order in which a kernel adds may depend on both.
            mean = torch.empty_like(parameter).copy_(gradient)
            parameter.grad = mean.div_(self.batches.global_ // self.batches.micro)
        self._statistics.update(totals[own + 1 :])
        loss, *values = totals[own].unbind()
        return [
            StepLoss(
                loss=loss / self.batches.global_,
                samples=self.batches.global_ if self.runtime.is_main else 0,
                values=dict(zip(step_loss.values, values, strict=True)),
            )
        ]


def _sum_values(step_loss: StepLoss) -> Tensor:
    """The sums over the samples of a micro batch: of its mean loss, and of the other values, which are sums."""
    return torch.stack([step_loss.loss.double() * step_loss.samples, *map(Tensor.double, step_loss.values.values())])


def _refuse_hidden_state(model: nn.Module, example_loss: Callable[[nn.Module], StepLoss]) -> None:
    kept = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    with torch.no_grad():
        example_loss(model)
    current = dict(model.named_buffers())  # read again: a forward pass may replace a buffer's tensor
    changed = [
        name for name, (_, before) in kept.items() if name not in current or not torch.equal(current[name], before)
    ]
    for name, (buffer, before) in kept.items():
        module, _, key = name.rpartition(".")
        model.get_submodule(module)._buffers[key] = buffer.copy_(before)
    if hidden := set(changed) - RunningStatistics.names(model):
        raise _unfit(f"each forward pass changes its {min(hidden)}, which is no BatchNorm's")


def _remove_gradient(parameter: nn.Parameter) -> Tensor:
    """Remove and return the gradient of `.grad`; zeros for a parameter that was not used.

    Another micro batch may use that parameter, and the tree must be the same in every step.
    """
    gradient, parameter.grad = parameter.grad, None
    return torch.zeros_like(parameter) if gradient is None else gradient


def _unfit(reason: str) -> Failure:
    return Failure(
        "this model cannot be trained with train.reproducible bitwise",
        found=reason,
        expected="a network that keeps nothing of its batches except BatchNorm's statistics",
        fix="set train.reproducible=fast, or take another model",
        code=ExitCode.USAGE,
    )
