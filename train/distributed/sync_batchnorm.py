"""This BatchNorm computes its statistics over the samples of all ranks, also on the CPU.

The statistics are those of one process that holds all the samples.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from entrypoint import ExitCode, Failure


class SharedProcessGroup:
    """The process group that sums. A deep copy is the same group: networks are copied, groups cannot be."""

    def __init__(self, ranks: dist.ProcessGroup) -> None:
        self.ranks = ranks

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedProcessGroup:
        return self

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all ranks, as a new tensor without a gradient."""
        total = values.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=self.ranks)
        return total


class AllReduceSum(torch.autograd.Function):
    """The sum over all ranks. Each rank's loss depends on every rank's values, so gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: SharedProcessGroup) -> Tensor:
        """Return a tensor of the same shape, which may be any."""
        ctx.group = group
        return group.sum(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """All ranks call it in the same order, because their graphs are equal."""
        return ctx.group.sum(gradient), None


class CpuSyncBatchNorm(_BatchNorm):
    """BatchNorm1d, 2d or 3d over all ranks on the CPU: torch's SyncBatchNorm supports GPUs only."""

    group: SharedProcessGroup

    def forward(self, x: Tensor) -> Tensor:
        """Normalize [n, channels, *size]; returns the same shape and dtype.

        Raises:
            ValueError: for fewer than 2 numbers per channel on all ranks together.
        """
        if not self.training:
            stored = self.running_mean, self.running_var
            return batch_norm(x, *stored, self.weight, self.bias, self.running_mean is None, 0.0, self.eps)
        dimensions = [0, *range(2, x.dim())]
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        count = wide.new_full((1,), wide.numel() / wide.shape[1])
        total = AllReduceSum.apply(torch.cat([wide.sum(dimensions), count]), self.group)
        number = float(total[-1].detach())
        if number < 2:
            raise ValueError("BatchNorm needs more than one number per channel to train")
        centred = wide - _reshape_per_channel(total[:-1] / number, wide)
        variance = AllReduceSum.apply(centred.square().sum(dimensions), self.group) / number
        self._remember(total[:-1].detach() / number, variance.detach() * (number / (number - 1)))
        normal = centred * _reshape_per_channel(torch.rsqrt(variance + self.eps), wide)
        if self.affine:
            normal = normal * _reshape_per_channel(self.weight, wide) + _reshape_per_channel(self.bias, wide)
        return normal.to(x.dtype)

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        """Update the running statistics with the mean and the unbiased variance, as torch does."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            part = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean, part)
            self.running_var.lerp_(variance, part)

    def _check_input_dim(self, x: Tensor) -> None:
        """Accept any number of dimensions."""


def convert_sync_batchnorm(net: nn.Module, device: torch.device, cpu_group: dist.ProcessGroup | None) -> nn.Module:
    """Let every BatchNorm of `net` use the samples of all ranks. Parameters, buffers and their names stay.

    cpu_group: the gloo group of all ranks; None for a single rank, which changes nothing. On GPUs the
    default group is used.

    Raises:
        Failure: USAGE for a subclass of BatchNorm with its own forward, which the replacement would lose.
    """
    if cpu_group is None:
        return net
    _refuse_custom_batchnorm(net)
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(net)  # type: ignore[no-any-return,no-untyped-call]
    group = SharedProcessGroup(cpu_group)
    for module in net.modules():
        if isinstance(module, _BatchNorm):
            module.__class__ = CpuSyncBatchNorm
            module.group = group  # type: ignore[assignment]
    return net


def _refuse_custom_batchnorm(net: nn.Module) -> None:
    for name, module in net.named_modules():
        if not isinstance(module, _BatchNorm) or isinstance(module, CpuSyncBatchNorm | nn.SyncBatchNorm):
            continue
        if type(module).forward is not _BatchNorm.forward:
            raise Failure(
                "train.sync_batchnorm cannot count the samples of all ranks in this model",
                found=f"{name or 'the network'} is a {type(module).__name__}, which has a forward of its own",
                expected="BatchNorm1d, 2d or 3d of torch, which another class can stand in for",
                fix="set train.sync_batchnorm=false, or use torch's BatchNorm and put what follows it into a layer of "
                "its own",
                code=ExitCode.USAGE,
            )


def _reshape_per_channel(per_channel: Tensor, x: Tensor) -> Tensor:
    """Reshape [channels] so that it broadcasts with `x`."""
    return per_channel.view(1, -1, *[1] * (x.dim() - 2))
