"""Builds the model that `model.name` names: a model of this project, of torchvision, of timm, or the user's.

torchvision's and timm's models are adapted to the number of classes and channels and to the image size.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any, Final, Literal

import torch
from torch import nn

from entrypoint import ExitCode, Failure
from train import rng
from train.config import checks, schema
from train.config.models import (
    BUILTIN_MODELS,
    FORBIDDEN_ARGUMENTS,
    RESNET_PREFIXES,
    TIMM_PREFIX,
)
from train.config.schema import ModelConfig
from train.data.shape import Shape
from train.models import custom, timm_models

SMALL_STEM_MAX_PIXELS: Final = 64  # ResNet's stem is for 224 pixels, and shrinks smaller images too much
DATA_ARGUMENTS: Final = ("classes", "shape")  # of the builders of our models
TORCHVISION_CHANNELS: Final = 3  # torchvision's models expect RGB


def build_torchvision_model(
    name: str, *, classes: int, shape: Shape, small_stem: bool | Literal["auto"] = "auto", **args: Any
) -> nn.Module:
    """Build torchvision's model `name` with random weights; `args` are its constructor's arguments.

    small_stem: for ResNets; a 3x3 convolution without stride, and no pooling. auto: for images up to
    64 pixels.

    Raises:
        ValueError, TypeError and others, for arguments that the constructor refuses.
    """
    from torchvision.models import ResNet, get_model_builder  # importing it takes a second; other models do not need it

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
    """The arguments that model.args may set for torchvision's model `name`.

    Empty if the model cannot be built on the meta device: only its type shows the arguments.
    """
    from torchvision.models import ResNet, get_model_builder

    with suppress(NotImplementedError), torch.device("meta"):
        model_type = type(get_model_builder(name)(**_default_arguments(name, None)))
        parameters = inspect.signature(model_type).parameters.values()
        names = [
            parameter.name
            for parameter in parameters
            if parameter.name not in FORBIDDEN_ARGUMENTS and parameter.default is not parameter.empty
        ]
        return [*names, "small_stem"] if model_type is ResNet else names
    return []


def first_convolution(net: nn.Module) -> nn.Conv2d:
    """The first convolution, which takes the image; all of torchvision's models begin with one."""
    return next(module for module in net.modules() if isinstance(module, nn.Conv2d))


def _default_arguments(name: str, shape: Shape | None) -> dict[str, Any]:
    """Our defaults for the constructor of `name`; model.args may replace them."""
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": True}
    if name.startswith(RESNET_PREFIXES):
        return {"zero_init_residual": True}  # each block starts as the identity, which stabilizes the first steps
    if shape and name.startswith("vit"):
        return {"image_size": shape.size[0]}
    return {"input_size": shape.size} if shape and name.startswith("maxvit") else {}


def torchvision_constructor_arguments(name: str, shape: Shape, args: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that torchvision's constructor of `name` gets for `model.args`, without `num_classes`."""
    own = {argument: value for argument, value in args.items() if argument != "small_stem"}
    return _default_arguments(name, shape) | own


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
    """Adapt the first convolution to `channels` inputs. Each input starts with the weights of R, G or B."""
    first = first_convolution(net)
    source_channels = torch.arange(channels, device=first.weight.device) % TORCHVISION_CHANNELS
    first.in_channels, first.weight = channels, nn.Parameter(first.weight.detach()[:, source_channels].clone())


CHANNELS_LAST_FORMATS: Final = {4: torch.channels_last, 5: torch.channels_last_3d}  # by a tensor's dimensions
# torch and torchvision raise these for bad arguments and shapes.
BUILD_ERRORS: Final = (
    TypeError, ValueError, RuntimeError, LookupError, ArithmeticError, AttributeError, AssertionError, MemoryError,
)  # fmt: skip
# If the images are too small for a model, it is tried with these sizes, to suggest one in the error.
TRIAL_IMAGE_SIZES: Final = (8, 16, 32, 64, 80, 96, 128, 192, 224, 256, 320, 384, 448, 512)


def build_model(
    model: ModelConfig,
    *,
    classes: int,
    shape: Shape,
    seed: int,
    factory: Callable[..., nn.Module] | None = None,
    other_shapes: Iterable[Shape] = (),
) -> nn.Module:
    """Build the network on the CPU, in channels-last layout.

    The weights depend on `seed` only, so they are the same on every rank and device. factory: the
    user's own, if the caller has it; otherwise the one that model.name names is imported. other_shapes: of samples that
    the network must take beside those of `shape`, for which it is built.

    Raises:
        Failure: USAGE for bad arguments, for samples that the network does not accept, and for a
            factory that returns anything but a network with one score per class.
    """
    torch.manual_seed(rng.derive_seed(rng.WEIGHTS, seed))
    if schema.is_factory(model.name):
        net = custom.build_custom_model(model, classes=classes, shape=shape, factory=factory)
    else:
        net = _build_named_model(model, classes=classes, shape=shape)
    with torch.no_grad():
        for tensor in (*net.parameters(), *net.buffers()):
            if layout := CHANNELS_LAST_FORMATS.get(tensor.dim()):
                tensor.data = tensor.data.to(memory_format=layout)
    for other in other_shapes:
        if other != shape and (wrong := find_problem(copy.deepcopy(net), other, classes)):
            raise _other_size_failure(model, other, wrong)
    return net


def count_parameters(net: nn.Module) -> int:
    """The number of trainable parameters."""
    return sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)


def model_builder(name: str) -> Callable[..., nn.Module]:
    """The function that builds the model `name` of this project, of torchvision or of timm."""
    if name not in BUILTIN_MODELS:
        return partial(_library_of(name).build, name)
    module, function = BUILTIN_MODELS[name].builder.split(":")
    builder: Callable[..., nn.Module] = getattr(import_module(f"train.models.{module}"), function)
    return builder


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLibrary:
    """A package whose models `model.name` can name. arguments: what model.args may set for the model with a name."""

    title: str
    build: Callable[..., nn.Module]
    arguments: Callable[[str], list[str]]


TORCHVISION: Final = ModelLibrary(title="torchvision", build=build_torchvision_model, arguments=torchvision_arguments)
TIMM: Final = ModelLibrary(title="timm", build=timm_models.build_timm_model, arguments=timm_models.timm_arguments)


def _library_of(name: str) -> ModelLibrary:
    return TIMM if name.startswith(TIMM_PREFIX) else TORCHVISION


def _build_named_model(model: ModelConfig, *, classes: int, shape: Shape) -> nn.Module:
    """Build a model of this project, of torchvision or of timm."""
    checks.refuse_forbidden_arguments(model)  # of a checkpoint, too: some would download weights
    checks.refuse_dimension_mismatch(model.name, len(shape.size), f"samples of {shape}")
    refuse_unknown_arguments(model)
    build = model_builder(model.name)
    try:
        net = build(classes=classes, shape=shape, **model.args)
    except BUILD_ERRORS as error:
        if model.args:
            raise _bad_arguments_failure(model, _first_line(error)) from error
        raise _bad_samples_failure(model, _first_line(error), classes, shape) from error
    # Some of timm's models keep tensors from a forward pass, and this one may compute shapes only.
    trial = copy.deepcopy(net) if model.name.startswith(TIMM_PREFIX) else net
    if wrong := find_problem(trial, shape, classes):
        raise _bad_samples_failure(model, wrong, classes, shape)
    return net


def refuse_unknown_arguments(model: ModelConfig) -> None:
    """Refuse arguments that a model of this project does not take. Of others only building them shows all.

    Raises:
        Failure: USAGE.
    """
    if model.name in BUILTIN_MODELS:
        allowed = _allowed_arguments(model.name)
        if unknown := [name for name in model.args if name not in allowed]:
            raise _bad_arguments_failure(model, f"unknown: {', '.join(unknown)}")


def find_problem(
    net: nn.Module,
    shape: Shape,
    classes: int,
    samples: int = custom.TRIAL_BATCH_SIZE,
    trying: Callable[[nn.Module, Shape, int, int], str | None] = custom.forward_error,
) -> str | None:
    """Why the network cannot train on a batch of so many samples, in words; None if it can."""
    try:
        return trying(net, shape, classes, samples)
    except BUILD_ERRORS as error:
        return _first_line(error)


def _allowed_arguments(name: str) -> Sequence[str]:
    """The arguments that model.args may set."""
    if name not in BUILTIN_MODELS:
        return _library_of(name).arguments(name)
    return [
        argument for argument in inspect.signature(model_builder(name)).parameters if argument not in DATA_ARGUMENTS
    ]


def _bad_arguments_failure(model: ModelConfig, problem: str) -> Failure:
    allowed = _allowed_arguments(model.name)
    unknown = next((name for name in model.args if name not in allowed), "")
    expected = f"values for: {', '.join(allowed) or f'its constructor in {_library_of(model.name).title}'}"
    return checks.bad_arguments_failure(
        "model.args", model.name, f"{model.args}: {problem}", expected, unknown=unknown, settable=allowed
    )


def _bad_samples_failure(model: ModelConfig, problem: str, classes: int, shape: Shape) -> Failure:
    side = next(
        (
            side
            for side in TRIAL_IMAGE_SIZES
            if side > min(shape.size) and _accepts_image_size(model, classes, shape, side)
        ),
        None,
    )
    height, width = shape.size[-2:]
    if height != width and _accepts_image_size(model, classes, shape, max(height, width)):
        fix = f"set data.image_size to one number, such as {max(height, width)}: it takes squares; or take"
    elif side:
        fix = f"give it larger samples ({side} pixels are enough: data.image_size), or take"
    else:
        fix = "take"
    return Failure(
        f"{model.name} does not take samples of {shape}",
        found=problem,
        fix=f"{fix} another model.name" + (", or correct model.args" if model.args else ""),
        code=ExitCode.USAGE,
    )


def _other_size_failure(model: ModelConfig, shape: Shape, problem: str) -> Failure:
    return Failure(
        f"{model.name} was built for images of data.image_size, and does not take samples of {shape}",
        found=problem,
        fix="leave eval.image_size and data.progressive_size out, or take a model for any size, such as a ResNet",
        code=ExitCode.USAGE,
    )


def _accepts_image_size(model: ModelConfig, classes: int, shape: Shape, side: int) -> bool:
    """Whether the model accepts square images with `side` pixels; tried on the meta device."""
    larger = Shape(channels=shape.channels, size=(*shape.size[:-2], side, side))
    build = model_builder(model.name)
    with suppress(*BUILD_ERRORS), torch.device("meta"):
        return custom.forward_error(build(classes=classes, shape=larger, **model.args), larger, classes) is None
    return False


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), "") or type(error).__name__
