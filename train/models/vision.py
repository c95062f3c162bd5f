"""torchvision's classification models, fitted to the data: its classes, its channels and its size."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Literal

import torch
from torch import nn

from train.data.shape import Shape

SMALL: Final = 64  # pixels up to which ResNet's stem, made for 224, would leave nothing to see
CHANNELS: Final = 3  # what torchvision's models are made for
# Settled elsewhere, so that model.args cannot say them. The first two would download.
SETTLED: Final[Mapping[str, str]] = {
    "weights": "nothing is downloaded; name a file in model.weights",
    "pretrained": "nothing is downloaded; name a file in model.weights",
    "progress": "nothing is downloaded",
    "num_classes": "the data decides",
    "aux_logits": "training is with one output",
}


def build(
    name: str, *, classes: int, shape: Shape, small_stem: bool | Literal["auto"] = "auto", **args: Any
) -> nn.Module:
    """The model `name` with random weights; `args` go to its constructor.

    small_stem, for ResNets and their kind: 3x3 without stride, and no pooling; auto: for images up to 64 pixels.

    Raises:
        ValueError, TypeError and others, for arguments that it does not take or cannot be built with.
    """
    from torchvision.models import ResNet, get_model_builder  # a second of imports that other models do not need

    for settled in SETTLED.keys() & args.keys():
        raise ValueError(f"{settled} cannot be set: {SETTLED[settled]}")
    net: nn.Module = get_model_builder(name)(num_classes=classes, **(_said(name, shape) | args))
    small = _small(small_stem, shape)
    if isinstance(net, ResNet):
        if small:
            _shrink_stem(net, shape.channels)
    elif small_stem != "auto":
        raise TypeError("small_stem is for resnet18 and its kind only (resnet, resnext, wide_resnet50_2)")
    if first_convolution(net).in_channels != shape.channels:
        _adapt_first(net, shape.channels)
    return net


def arguments(name: str) -> list[str]:
    """What `build` takes beside classes and shape; empty where torchvision does not tell without building it."""
    from torchvision.models import ResNet, get_model_builder

    with suppress(NotImplementedError), torch.device("meta"):
        made = type(get_model_builder(name)(**_said(name, None)))
        offered = inspect.signature(made).parameters.values()
        taken = [one.name for one in offered if one.name not in SETTLED and one.default is not one.empty]
        return [*taken, "small_stem"] if made is ResNet else taken
    return []


def first_convolution(net: nn.Module) -> nn.Conv2d:
    """What sees the image first: all of torchvision's models begin with one."""
    return next(module for module in net.modules() if isinstance(module, nn.Conv2d))


def _said(name: str, shape: Shape | None) -> dict[str, Any]:
    """What the constructor of `name` is told where model.args say nothing else."""
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": True}
    if name.startswith(("resnet", "resnext", "wide_resnet")):
        return {"zero_init_residual": True}  # each block begins as its skip: the first steps are steadier
    if shape and name.startswith("vit"):
        return {"image_size": shape.size[0]}
    return {"input_size": shape.size} if shape and name.startswith("maxvit") else {}


def _small(small_stem: bool | Literal["auto"], shape: Shape) -> bool:
    if small_stem == "auto":
        return min(shape.size) <= SMALL
    if not isinstance(small_stem, bool):
        raise ValueError(f"small_stem must be auto, true or false, not {small_stem!r}")
    return small_stem


def _shrink_stem(net: Any, channels: int) -> None:
    net.conv1 = nn.Conv2d(channels, net.conv1.out_channels, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    net.maxpool = nn.Identity()


def _adapt_first(net: nn.Module, channels: int) -> None:
    """Let the first convolution take so many channels: each begins with the weights of one of its three."""
    first = first_convolution(net)
    of = torch.arange(channels, device=first.weight.device) % CHANNELS
    first.in_channels, first.weight = channels, nn.Parameter(first.weight.detach()[:, of].clone())
