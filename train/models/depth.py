"""Finds the layers and blocks of a network in the order of their depth.

For `optim.layer_decay` (layers near the input learn more slowly) and `train.activation_checkpointing`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from torch import nn

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
