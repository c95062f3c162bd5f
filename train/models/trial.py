"""Whether a network takes the samples and gives one score per class: tried before training, and without a trace."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.func import functional_call

from train.data.shape import Shape

BATCH = 2  # samples: BatchNorm cannot train on one number
LARGER: Final = 32
SMALL: Final = 8192  # numbers in a sample: 52 x 52 pixels of three channels


def of_shapes(net: nn.Module, shape: Shape, classes: int) -> str | None:
    """What is wrong with a training step's output, or None. Parameters and buffers stay as they are.

    Small samples are computed: what follows shapes alone takes 1.7 s to load (torch's compiler and sympy).

    Raises:
        RuntimeError and others, where the network cannot take samples of this shape.
    """
    if math.prod(shape.input) > SMALL:
        return without_data(net, shape, classes)
    copies = {name: buffer.clone() for name, buffer in net.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        return wrong(functional_call(net, copies, (torch.zeros(BATCH, *shape.input),)), classes)


def without_data(net: nn.Module, shape: Shape, classes: int) -> str | None:
    """What is wrong with a training step's output, or None. Nothing is computed: shapes alone are followed.

    Raises:
        RuntimeError and others, where the network cannot take samples of this shape.
    """
    named = chain(net.named_parameters(), net.named_buffers())
    hollow = {name: torch.empty_like(tensor, device="meta") for name, tensor in named}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        return wrong(functional_call(net, hollow, (torch.zeros(BATCH, *shape.input, device="meta"),)), classes)


def with_zeros(net: nn.Module, shape: Shape, classes: int) -> str | None:
    """What is wrong with the output for zeros in evaluation mode, or with the weights' part in it; None if nothing is.

    Generators, buffers, gradients and modes stay as they are. Lazy layers find their sizes here.

    Raises:
        Exception: what the network raises.
    """
    with torch.random.fork_rng(devices=[]), _evaluating(net):
        output = net(torch.zeros(BATCH, *shape.input))
        return wrong(output, classes) or _idle(net, output)


def as_it_trains(net: nn.Module, shape: Shape, classes: int) -> str | None:
    """What is wrong with the output for zeros in the modes that the network has; None if nothing is.

    Generators, parameters, buffers and whatever else its modules keep stay as they are.

    Raises:
        Exception: what the network raises, for a larger batch too: some cut theirs into parts.
    """
    try:
        with _tried(net):
            return wrong(net(torch.zeros(BATCH, *shape.input)), classes)
    except Exception:
        with suppress(Exception), _tried(net):
            return wrong(net(torch.zeros(LARGER, *shape.input)), classes, LARGER)
        raise


def wrong(output: object, classes: int, samples: int = BATCH) -> str | None:
    """What keeps `output`, for a batch of so many, from being its scores [samples, classes]."""
    if not isinstance(output, Tensor):
        return f"for {samples} samples it gives a {type(output).__name__}"
    if tuple(output.shape) != (samples, classes):
        return f"for {samples} samples it gives {list(output.shape)}"
    return None if output.is_floating_point() else f"it gives numbers of type {output.dtype}"


def _idle(net: nn.Module, output: Tensor) -> str | None:
    """Weights that the output does not depend on: with several ranks nobody could say when all gradients are there."""
    named = {name: tensor for name, tensor in net.named_parameters() if tensor.requires_grad}
    if not named or not output.requires_grad:
        return "none of its weights can be trained"
    gradients = torch.autograd.grad(output.sum(), list(named.values()), allow_unused=True)
    idle = [name for name, gradient in zip(named, gradients, strict=True) if gradient is None]
    return f"its output does not depend on {', '.join(idle[:3])}" if idle else None


@contextmanager
def _evaluating(net: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; every module's mode and every buffer as before, after it."""
    modes = {module: module.training for module in net.modules()}
    held = [(place, key, tensor) for module in net.modules() for place, key, tensor in _own_buffers(module)]
    buffers = [(buffer, buffer.clone()) for buffer in net.buffers() if not torch.nn.parameter.is_lazy(buffer)]
    net.eval()
    try:
        with torch.enable_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for place, key, tensor in held:  # a forward may have put a new tensor in the place of one
            place[key] = tensor
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _own_buffers(module: nn.Module) -> list[tuple[dict[str, Any], str, Tensor]]:
    """Those that have their size already, and where it keeps them."""
    if isinstance(module, torch.jit.ScriptModule):
        return []
    found = [(key, one) for key, one in module._buffers.items() if one is not None]
    return [(module._buffers, key, one) for key, one in found if not torch.nn.parameter.is_lazy(one)]


@contextmanager
def _tried(net: nn.Module) -> Iterator[None]:
    """After it, each module has what it had before: also what its forward has put in place of something, and what it
    has made of its first batch.
    """
    modules = [module for module in net.modules() if not isinstance(module, torch.jit.ScriptModule)]
    kept = [(vars(module), dict(vars(module)), _held(module)) for module in modules]
    values = [(tensor, tensor.detach().clone()) for tensor in chain(net.parameters(), net.buffers())]
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            yield
    finally:
        for now, before, held in kept:
            now.clear()
            now.update(before)
            for place, there in held:
                place.clear()
                place.update(there)
        with torch.no_grad():
            for tensor, numbers in values:
                if not torch.equal(tensor, numbers):
                    tensor.copy_(numbers)


def _held(module: nn.Module) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Where it keeps its parameters, buffers and parts, and what is there now."""
    return [(place, dict(place)) for place in (module._parameters, module._buffers, module._modules)]
