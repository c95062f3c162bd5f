"""From a name, its arguments and the data's shape to a network with its first weights."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Final, Literal

import torch
from torch import Tensor, nn

from entrypoint import ExitCode, Failure
from train import keyed
from train.config import Model
from train.shape import Shape

Norm = Literal["group", "batch", "none"]
GROUP: Final = 8  # channels that GroupNorm normalizes together
LAYOUTS: Final = {2: torch.channels_last, 3: torch.channels_last_3d}  # by the dimensions of a sample's pixels
SMALL: Final = 64  # pixels up to which ResNet's stem, made for 224, would leave nothing to see


class Residual(nn.Module):
    """Adds its input to what it computes from it."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, h, w] to the same shape."""
        return x + self.layers(x)  # type: ignore[no-any-return]


class Scaled(nn.Module):
    """Multiplies by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Any shape to the same shape."""
        return x * self.factor


def small_cnn(
    *, classes: int, shape: Shape, width: int = 16, blocks: int = 1, norm: Norm = "group", dropout: float = 0.0
) -> nn.Module:
    """Three stages at width, 2 width and 4 width channels, each halving the image, then one linear layer.

    GroupNorm by default: with BatchNorm the result depends on the size of the micro batch.
    """
    side = min(shape.size[-2:]) // 8
    pool = max(1, side // 4)
    features = 4 * width * (side // pool) ** 2
    layers = [*_conv(shape.channels, width, norm), nn.MaxPool2d(2)]
    for channels in (width, 2 * width):
        layers += _conv(channels, 2 * channels, norm)
        layers += [Residual(*_conv(2 * channels, 2 * channels, norm)) for _ in range(blocks)]
        layers += [nn.MaxPool2d(2)]
    # Features of length 6 or so, however many there are: else a learning rate that suits the convolutions is too
    # large for the last layer, which then destroys all before it in the first steps.
    head = [nn.AvgPool2d(pool), nn.Flatten(), Scaled(6 / math.sqrt(features)), nn.Dropout(dropout)]
    net = nn.Sequential(*layers, *head, nn.Linear(features, classes))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
    return net


def resnet18(*, classes: int, shape: Shape, zero_init_residual: bool = True) -> nn.Module:
    """torchvision's, with a stem for small images up to 64 pixels: 3x3 without stride, no pooling."""
    from torchvision.models import resnet18 as build_resnet18  # a second of imports that other models do not need

    net = build_resnet18(num_classes=classes, zero_init_residual=zero_init_residual)
    if min(shape.size[-2:]) <= SMALL:
        net.conv1 = nn.Conv2d(shape.channels, 64, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
        net.maxpool = nn.Identity()
    return net  # type: ignore[no-any-return]


MODELS: Final[Mapping[str, Callable[..., nn.Module]]] = {"small_cnn": small_cnn, "resnet18": resnet18}


def build(model: Model, *, classes: int, shape: Shape, seed: int) -> nn.Module:
    """The network on the CPU, channels last, its weights from `seed` alone: the same on every rank and device.

    Raises:
        Failure: USAGE for arguments that the network does not take, or that it cannot be built with.
    """
    make = MODELS[model.name]
    known = [name for name in inspect.signature(make).parameters if name not in ("classes", "shape")]
    if unknown := [name for name in model.args if name not in known]:
        raise _bad_arguments(model, f"unknown: {', '.join(unknown)}", known)
    torch.manual_seed(keyed.seed(keyed.WEIGHTS, seed))
    try:
        net = make(classes=classes, shape=shape, **model.args)
    except (TypeError, ValueError, RuntimeError, KeyError, ZeroDivisionError) as error:
        raise _bad_arguments(model, str(error), known) from error
    return net.to(memory_format=LAYOUTS[len(shape.size)])


def laid_out(samples: Tensor) -> Tensor:
    """A batch [n, channels, *size] with its channels last in memory, as the network's weights are."""
    return samples.to(memory_format=LAYOUTS[samples.dim() - 2])


def parameters(net: nn.Module) -> int:
    """How many numbers are trained."""
    return sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)


def _bad_arguments(model: Model, found: str, known: list[str]) -> Failure:
    return Failure(
        f"model.args do not fit {model.name}",
        found=f"{model.args}: {found}",
        expected=f"values for: {', '.join(known)}",
        fix="correct model.args, or leave it out",
        code=ExitCode.USAGE,
    )


def _conv(inside: int, outside: int, norm: Norm) -> list[nn.Module]:
    norms: dict[str, Callable[[], nn.Module]] = {
        "group": lambda: nn.GroupNorm(max(1, outside // GROUP), outside),
        "batch": lambda: nn.BatchNorm2d(outside),
        "none": nn.Identity,
    }
    return [nn.Conv2d(inside, outside, 3, padding=1, bias=norm == "none"), norms[norm](), nn.ReLU(inplace=True)]
