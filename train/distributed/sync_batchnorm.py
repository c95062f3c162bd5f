"""This module lets BatchNorm compute its statistics over the samples of all ranks, on GPUs."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from entrypoint import ExitCode, Failure


def convert_sync_batchnorm(net: nn.Module, world_size: int) -> nn.Module:
    """Replace every BatchNorm of `net` by torch's SyncBatchNorm. Parameters, buffers and their names stay.

    A single rank changes nothing. `checks.refuse_conflicts` has refused several ranks on the CPU.

    Raises:
        Failure: USAGE for a subclass of BatchNorm with its own forward, which the replacement would lose.
    """
    if world_size == 1:
        return net
    _refuse_custom_batchnorm(net)
    return nn.SyncBatchNorm.convert_sync_batchnorm(net)  # type: ignore[no-any-return,no-untyped-call]


def _refuse_custom_batchnorm(net: nn.Module) -> None:
    for name, module in net.named_modules():
        if not isinstance(module, _BatchNorm) or isinstance(module, nn.SyncBatchNorm):
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
