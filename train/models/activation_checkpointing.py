"""`train.activation_checkpointing`: blocks keep only their input, and compute again in the backward pass.

Memory for activations falls to that of one block and the blocks' inputs; a step computes a third more. The numbers are
the same: dropout draws the same again, and BatchNorm updates its running statistics only once. (timm's own
set_grad_checkpointing updates them twice, therefore it is not used.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from entrypoint import ExitCode, Failure
from train.models.depth import blocks


def enable_activation_checkpointing(net: nn.Module, model_name: str) -> None:
    """Let each block of `net` compute again in the backward pass, without changing its parameters' names.

    Raises:
        Failure: USAGE for a network without repeated blocks.
    """
    repeated = blocks(net)
    if not repeated:
        raise Failure(
            f"train.activation_checkpointing does not fit {model_name}",
            found="a network without blocks in a Sequential or ModuleList",
            fix="leave train.activation_checkpointing out, or take smaller micro batches: train.micro_batch_size",
            code=ExitCode.USAGE,
        )
    for block in repeated:
        block.forward = partial(_forward, block, block.forward)


def _forward(block: nn.Module, forward: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    if not (torch.is_grad_enabled() and block.training):
        return forward(*arguments, **options)
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm)]

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _statistics_kept(norms)

    return checkpoint(forward, *arguments, use_reentrant=False, context_fn=contexts, **options)


@contextmanager
def _statistics_kept(norms: list[_BatchNorm]) -> Iterator[None]:
    """Let BatchNorm layers leave their running statistics as they are."""
    before = [(norm, norm.momentum, norm._buffers.get("num_batches_tracked")) for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
        if "num_batches_tracked" in norm._buffers:
            norm._buffers["num_batches_tracked"] = None
    try:
        yield
    finally:
        for norm, momentum, tracked in before:
            norm.momentum = momentum
            if "num_batches_tracked" in norm._buffers:
                norm._buffers["num_batches_tracked"] = tracked
