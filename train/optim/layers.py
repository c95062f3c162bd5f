"""Orders a network's parameters by depth, for `optim.layer_decay`: layers near the input learn more slowly."""

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
        for number, layer in enumerate(_layers(net)):
            for parameter in layer.parameters():
                matched.setdefault(names[id(parameter)], number)
    first = min(matched.values(), default=0)
    numbers = {name: matched.get(name, first) for name, _ in net.named_parameters()}  # class tokens and the like
    ranks = {number: rank for rank, number in enumerate(sorted(set(numbers.values())))}
    return {name: ranks[number] for name, number in numbers.items()}


def _layers(net: nn.Module) -> Iterator[nn.Module]:
    """The layers with parameters: the network's children, or what is inside those that only hold others."""
    for child in net.children():
        if type(child) in CONTAINERS:
            yield from _members(child)
        elif any(type(inner) in CONTAINERS and len(list(inner.children())) > 2 for inner in child.children()):
            yield from _layers(child)  # as torchvision's encoder of a vision transformer
        elif any(True for _ in child.parameters()):
            yield child


def _members(container: nn.Module) -> Iterator[nn.Module]:
    for member in container.children():
        if type(member) in CONTAINERS:
            yield from _members(member)
        elif any(True for _ in member.parameters()):
            yield member
