"""From a name, its arguments and the data's shape to a network with its first weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from entrypoint import ExitCode, Failure
from train import keyed
from train.data.shape import Shape
from train.models import bespoke, trial, vision
from train.models.cnn3d import cnn3d
from train.models.small_cnn import small_cnn
from train.models.wide_resnet import wide_resnet
from train.settings import kinds, names
from train.settings.config import Model

LAYOUTS: Final = {4: torch.channels_last, 5: torch.channels_last_3d}  # by a tensor's dimensions
OWN: Final[Mapping[str, Callable[..., nn.Module]]] = {
    "small_cnn": small_cnn,
    "wide_resnet": wide_resnet,
    "cnn3d": cnn3d,
}  # the rest are torchvision's
# What arguments and shapes without sense end in, inside torch and torchvision.
UNFIT: Final = (
    TypeError, ValueError, RuntimeError, LookupError, ArithmeticError, AttributeError, AssertionError, MemoryError,
)  # fmt: skip
# Pixels at which models that need more than the data has are tried, for the advice.
SIZES: Final = (8, 16, 32, 64, 80, 96, 128, 192, 224, 256, 320, 384, 448, 512)


def build(
    model: Model, *, classes: int, shape: Shape, seed: int, factory: Callable[..., nn.Module] | None = None
) -> nn.Module:
    """The network on the CPU, channels last, its weights from `seed` alone: the same on every rank and device.

    factory: the user's own, where the caller has it already; else what model.name names is imported.

    Raises:
        Failure: USAGE for arguments that the network does not take or cannot be built with, for samples that it does
            not take, and for a factory that gives something else than a network with one score per class.
    """
    torch.manual_seed(keyed.seed(keyed.WEIGHTS, seed))
    if names.is_factory(model.name):
        net = bespoke.build(model, classes=classes, shape=shape, factory=factory)
    else:
        net = _named(model, classes=classes, shape=shape)
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            tensor.data = laid_out(tensor.data)
    return net


def laid_out(samples: Tensor) -> Tensor:
    """A batch [n, channels, *size] with its channels last in memory, as the network's weights are."""
    layout = LAYOUTS.get(samples.dim())
    return samples.to(memory_format=layout) if layout else samples


def parameters(net: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)


def _named(model: Model, *, classes: int, shape: Shape) -> nn.Module:
    """One of our own, or of torchvision's."""
    kinds.refuse_mismatch(model.name, len(shape.size), f"samples of {shape}")
    if model.name in OWN and (unknown := [name for name in model.args if name not in _arguments(model.name)]):
        raise _bad_arguments(model, f"unknown: {', '.join(unknown)}")
    make = OWN.get(model.name) or partial(vision.build, model.name)
    try:
        net = make(classes=classes, shape=shape, **model.args)
    except UNFIT as error:
        if model.args:
            raise _bad_arguments(model, _first_line(error)) from error
        raise _bad_samples(model, _first_line(error), classes, shape) from error
    try:
        wrong = trial.of_shapes(net, shape, classes)
    except UNFIT as error:
        wrong = _first_line(error)
    if wrong:
        raise _bad_samples(model, wrong, classes, shape)
    return net


def _arguments(name: str) -> list[str]:
    """What model.args may hold."""
    if name not in OWN:
        return vision.arguments(name)
    return [one for one in inspect.signature(OWN[name]).parameters if one not in ("classes", "shape")]


def _bad_arguments(model: Model, found: str) -> Failure:
    return Failure(
        f"model.args do not fit {model.name}",
        found=f"{model.args}: {found}",
        expected=f"values for: {', '.join(_arguments(model.name)) or 'its constructor in torchvision'}",
        fix="correct model.args, or leave it out",
        code=ExitCode.USAGE,
    )


def _bad_samples(model: Model, found: str, classes: int, shape: Shape) -> Failure:
    side = next((side for side in SIZES if side > min(shape.size) and _takes(model, classes, shape, side)), None)
    larger = f"give it larger samples ({side} pixels are enough: data.image_size), or take" if side else "take"
    return Failure(
        f"{model.name} does not take samples of {shape}",
        found=found,
        fix=f"{larger} another model.name" + (", or correct model.args" if model.args else ""),
        code=ExitCode.USAGE,
    )


def _takes(model: Model, classes: int, shape: Shape, side: int) -> bool:
    """Whether the model could be built for square samples of so many pixels: tried without their data."""
    larger = Shape(channels=shape.channels, size=(*shape.size[:-2], side, side))
    make = OWN.get(model.name) or partial(vision.build, model.name)
    with suppress(*UNFIT), torch.device("meta"):
        return trial.without_data(make(classes=classes, shape=larger, **model.args), larger, classes) is None
    return False


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
