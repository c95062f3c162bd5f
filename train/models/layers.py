"""Provides the layers and initialization that the models of this project share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

from torch import Tensor, nn

NormName = Literal["group", "batch", "none"]
CHANNELS_PER_GROUP: Final = 8  # channels that GroupNorm normalizes together
CONVOLUTIONS: Final[dict[int, type[nn.Module]]] = {2: nn.Conv2d, 3: nn.Conv3d}
BATCH_NORMS: Final[dict[int, type[nn.Module]]] = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


class Residual(nn.Module):
    """Adds its input to the output of its layers."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """x: [n, channels, *size]. Returns the same shape."""
        return x + self.layers(x)  # type: ignore[no-any-return]


class Scale(nn.Module):
    """Multiplies by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """x: any shape. Returns the same shape."""
        return x * self.factor


class GlobalAvgPool(nn.Module):
    """The mean over all pixels and frames."""

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, *size] to [n, channels]."""
        return x.flatten(2).mean(2)


def conv_norm_relu(
    inside: int, outside: int, norm: NormName, *, dims: int = 2, stride: int | tuple[int, ...] = 1
) -> list[nn.Module]:
    """A convolution with a kernel of 3 in each dimension, its norm, and ReLU."""
    norms: dict[str, Callable[[], nn.Module]] = {
        "group": lambda: nn.GroupNorm(max(1, outside // CHANNELS_PER_GROUP), outside),
        "batch": lambda: BATCH_NORMS[dims](outside),
        "none": nn.Identity,
    }
    convolution = CONVOLUTIONS[dims](inside, outside, 3, padding=1, stride=stride, bias=norm == "none")
    return [convolution, norms[norm](), nn.ReLU(inplace=True)]


def init_conv_weights(net: nn.Module) -> None:
    """Initialize the convolutions as He et al. (2015) do, by their fan-out."""
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")


def require_integers(minimum: int, **values: Any) -> None:
    """Refuse `values` that are not whole numbers of at least `minimum`.

    Raises:
        ValueError: naming the first of them.
    """
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise ValueError(f"{name} must be a whole number, {minimum} or more, not {value!r}")
