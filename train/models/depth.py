"""Finds the layers and blocks of a network in the order of their depth.

Layers near the input learn more slowly with `optim.layer_decay`. With `train.activation_checkpointing` blocks keep only
their input, and compute again in the backward pass.

Memory for activations falls to that of one block and the blocks' inputs; a step computes a third more. The numbers are
the same: dropout draws the same again, and BatchNorm updates its running statistics only once. (timm's own
set_grad_checkpointing updates them twice, therefore it is not used.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Final

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from entrypoint import ExitCode, Failure


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


CONTAINERS: Final = (nn.Sequential, nn.ModuleList)


def layer_numbers(net: nn.Module) -> dict[str, int]:
    """The number of the layer of each parameter, from 0 at the input, without gaps.

    timm's models name their own layers. Of other networks the layers are the children in their order; a Sequential or
    ModuleList counts as its members.
    """
    matcher: Any = getattr(net, "group_matcher", None)
    if matcher is not None:
        from timm.models import group_parameters

        matched: dict[str, Any] = group_parameters(net, matcher(coarse=False), reverse=True)
    else:
        names = {id(parameter): name for name, parameter in net.named_parameters()}
        matched = {}
        for number, layer in enumerate(layers_by_depth(net)):
            for parameter in layer.parameters():
                matched.setdefault(names[id(parameter)], number)
    first = min(matched.values(), default=0)
    numbers = {name: matched.get(name, first) for name, _ in net.named_parameters()}  # class tokens and the like
    ranks = {number: rank for rank, number in enumerate(sorted(set(numbers.values())))}
    return {name: ranks[number] for name, number in numbers.items()}


def layers_by_depth(net: nn.Module) -> Iterator[nn.Module]:
    """The layers with parameters: the network's children, or what is inside those that only hold others."""
    for child in net.children():
        if type(child) in CONTAINERS:
            yield from _members(child)
        elif any(type(inner) in CONTAINERS and len(list(inner.children())) > 2 for inner in child.children()):
            yield from layers_by_depth(child)  # as torchvision's encoder of a vision transformer
        elif any(True for _ in child.parameters()):
            yield child


def _members(container: nn.Module) -> Iterator[nn.Module]:
    """The layers in a Sequential or ModuleList."""
    for member in container.children():
        if type(member) in CONTAINERS:
            yield from _members(member)
        elif any(True for _ in member.parameters()):
            yield member


MIN_BLOCK_LAYERS: Final = 3  # layers with parameters; a convolution and its norm are no block yet


def blocks(module: nn.Module) -> list[nn.Module]:
    """The repeated blocks: the members of a Sequential or ModuleList with several layers each, the innermost ones."""
    repeated: list[nn.Module] = []
    for child in module.children():
        if inner := blocks(child):
            repeated += inner
        elif type(module) in CONTAINERS and type(child) not in CONTAINERS and _num_layers(child) >= MIN_BLOCK_LAYERS:
            repeated.append(child)
    return repeated


def _num_layers(module: nn.Module) -> int:
    return sum(1 for inner in module.modules() if any(True for _ in inner.parameters(recurse=False)))
