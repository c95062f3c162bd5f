"""Builds the model that `model.name` names: one of this project, of torchvision, or the user's.

torchvision's models are adapted to the number of classes and channels and to the image size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from entrypoint import ExitCode, Failure
from train import rng
from train.config import checks, schema
from train.config.schema import ModelConfig
from train.data.shape import Shape
from train.models import custom
from train.models.cnn3d import cnn3d
from train.models.small_cnn import small_cnn
from train.models.wide_resnet import wide_resnet

SMALL_STEM_MAX_PIXELS: Final = 64  # pixels up to which ResNet's stem, made for 224, would leave nothing to see
TORCHVISION_CHANNELS: Final = 3  # what torchvision's models are made for
# Settled elsewhere, so that model.args cannot say them. The first two would download.
FORBIDDEN_ARGUMENTS: Final[Mapping[str, str]] = {
    "weights": "nothing is downloaded; name a file in model.weights",
    "pretrained": "nothing is downloaded; name a file in model.weights",
    "progress": "nothing is downloaded",
    "num_classes": "the data decides",
    "aux_logits": "training is with one output",
}


def build_torchvision_model(
    name: str, *, classes: int, shape: Shape, small_stem: bool | Literal["auto"] = "auto", **args: Any
) -> nn.Module:
    """The model `name` with random weights; `args` go to its constructor.

    small_stem, for ResNets and their kind: 3x3 without stride, and no pooling; auto: for images up to 64 pixels.

    Raises:
        ValueError, TypeError and others, for arguments that it does not take or cannot be built with.
    """
    from torchvision.models import ResNet, get_model_builder  # a second of imports that other models do not need

    for settled in FORBIDDEN_ARGUMENTS.keys() & args.keys():
        raise ValueError(f"{settled} cannot be set: {FORBIDDEN_ARGUMENTS[settled]}")
    net: nn.Module = get_model_builder(name)(num_classes=classes, **(_default_arguments(name, shape) | args))
    small = _uses_small_stem(small_stem, shape)
    if isinstance(net, ResNet):
        if small:
            _shrink_stem(net, shape.channels)
    elif small_stem != "auto":
        raise TypeError("small_stem is for resnet18 and its kind only (resnet, resnext, wide_resnet50_2)")
    if first_convolution(net).in_channels != shape.channels:
        _adapt_input_channels(net, shape.channels)
    return net


def torchvision_arguments(name: str) -> list[str]:
    """What `build` takes beside classes and shape; empty where torchvision does not tell without building it."""
    from torchvision.models import ResNet, get_model_builder

    with suppress(NotImplementedError), torch.device("meta"):
        made = type(get_model_builder(name)(**_default_arguments(name, None)))
        offered = inspect.signature(made).parameters.values()
        taken = [one.name for one in offered if one.name not in FORBIDDEN_ARGUMENTS and one.default is not one.empty]
        return [*taken, "small_stem"] if made is ResNet else taken
    return []


def first_convolution(net: nn.Module) -> nn.Conv2d:
    """What sees the image first: all of torchvision's models begin with one."""
    return next(module for module in net.modules() if isinstance(module, nn.Conv2d))


def _default_arguments(name: str, shape: Shape | None) -> dict[str, Any]:
    """What the constructor of `name` is told where model.args say nothing else."""
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": True}
    if name.startswith(("resnet", "resnext", "wide_resnet")):
        return {"zero_init_residual": True}  # each block begins as its skip: the first steps are steadier
    if shape and name.startswith("vit"):
        return {"image_size": shape.size[0]}
    return {"input_size": shape.size} if shape and name.startswith("maxvit") else {}


def _uses_small_stem(small_stem: bool | Literal["auto"], shape: Shape) -> bool:
    if small_stem == "auto":
        return min(shape.size) <= SMALL_STEM_MAX_PIXELS
    if not isinstance(small_stem, bool):
        raise ValueError(f"small_stem must be auto, true or false, not {small_stem!r}")
    return small_stem


def _shrink_stem(net: Any, channels: int) -> None:
    net.conv1 = nn.Conv2d(channels, net.conv1.out_channels, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    net.maxpool = nn.Identity()


def _adapt_input_channels(net: nn.Module, channels: int) -> None:
    """Let the first convolution take so many channels: each begins with the weights of one of its three."""
    first = first_convolution(net)
    of = torch.arange(channels, device=first.weight.device) % TORCHVISION_CHANNELS
    first.in_channels, first.weight = channels, nn.Parameter(first.weight.detach()[:, of].clone())


CHANNELS_LAST_FORMATS: Final = {4: torch.channels_last, 5: torch.channels_last_3d}  # by a tensor's dimensions
BUILTIN_MODELS: Final[Mapping[str, Callable[..., nn.Module]]] = {
    "small_cnn": small_cnn,
    "wide_resnet": wide_resnet,
    "cnn3d": cnn3d,
}  # the rest are torchvision's
# What arguments and shapes without sense end in, inside torch and torchvision.
BUILD_ERRORS: Final = (
    TypeError, ValueError, RuntimeError, LookupError, ArithmeticError, AttributeError, AssertionError, MemoryError,
)  # fmt: skip
# Pixels at which models that need more than the data has are tried, for the advice.
TRIAL_IMAGE_SIZES: Final = (8, 16, 32, 64, 80, 96, 128, 192, 224, 256, 320, 384, 448, 512)


def build_model(
    model: ModelConfig, *, classes: int, shape: Shape, seed: int, factory: Callable[..., nn.Module] | None = None
) -> nn.Module:
    """The network on the CPU, channels last, its weights from `seed` alone: the same on every rank and device.

    factory: the user's own, where the caller has it already; else what model.name names is imported.

    Raises:
        Failure: USAGE for arguments that the network does not take or cannot be built with, for samples that it does
            not take, and for a factory that gives something else than a network with one score per class.
    """
    torch.manual_seed(rng.derive_seed(rng.WEIGHTS, seed))
    if schema.is_factory(model.name):
        net = custom.build_custom_model(model, classes=classes, shape=shape, factory=factory)
    else:
        net = _build_named_model(model, classes=classes, shape=shape)
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            tensor.data = to_channels_last(tensor.data)
    return net


def to_channels_last(samples: Tensor) -> Tensor:
    """A batch [n, channels, *size] with its channels last in memory, as the network's weights are."""
    layout = CHANNELS_LAST_FORMATS.get(samples.dim())
    return samples.to(memory_format=layout) if layout else samples


def count_parameters(net: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)


def _build_named_model(model: ModelConfig, *, classes: int, shape: Shape) -> nn.Module:
    """One of our own, or of torchvision's."""
    checks.refuse_dimension_mismatch(model.name, len(shape.size), f"samples of {shape}")
    if model.name in BUILTIN_MODELS and (
        unknown := [name for name in model.args if name not in _allowed_arguments(model.name)]
    ):
        raise _bad_arguments_failure(model, f"unknown: {', '.join(unknown)}")
    make = BUILTIN_MODELS.get(model.name) or partial(build_torchvision_model, model.name)
    try:
        net = make(classes=classes, shape=shape, **model.args)
    except BUILD_ERRORS as error:
        if model.args:
            raise _bad_arguments_failure(model, _first_line(error)) from error
        raise _bad_samples_failure(model, _first_line(error), classes, shape) from error
    try:
        wrong = custom.forward_error(net, shape, classes)
    except BUILD_ERRORS as error:
        wrong = _first_line(error)
    if wrong:
        raise _bad_samples_failure(model, wrong, classes, shape)
    return net


def _allowed_arguments(name: str) -> list[str]:
    """What model.args may hold."""
    if name not in BUILTIN_MODELS:
        return torchvision_arguments(name)
    return [one for one in inspect.signature(BUILTIN_MODELS[name]).parameters if one not in ("classes", "shape")]


def _bad_arguments_failure(model: ModelConfig, found: str) -> Failure:
    return Failure(
        f"model.args do not fit {model.name}",
        found=f"{model.args}: {found}",
        expected=f"values for: {', '.join(_allowed_arguments(model.name)) or 'its constructor in torchvision'}",
        fix="correct model.args, or leave it out",
        code=ExitCode.USAGE,
    )


def _bad_samples_failure(model: ModelConfig, found: str, classes: int, shape: Shape) -> Failure:
    side = next(
        (
            side
            for side in TRIAL_IMAGE_SIZES
            if side > min(shape.size) and _accepts_image_size(model, classes, shape, side)
        ),
        None,
    )
    larger = f"give it larger samples ({side} pixels are enough: data.image_size), or take" if side else "take"
    return Failure(
        f"{model.name} does not take samples of {shape}",
        found=found,
        fix=f"{larger} another model.name" + (", or correct model.args" if model.args else ""),
        code=ExitCode.USAGE,
    )


def _accepts_image_size(model: ModelConfig, classes: int, shape: Shape, side: int) -> bool:
    """Whether the model could be built for square samples of so many pixels: tried without their data."""
    larger = Shape(channels=shape.channels, size=(*shape.size[:-2], side, side))
    make = BUILTIN_MODELS.get(model.name) or partial(build_torchvision_model, model.name)
    with suppress(*BUILD_ERRORS), torch.device("meta"):
        return custom.meta_forward_error(make(classes=classes, shape=larger, **model.args), larger, classes) is None
    return False


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
