"""Builds a small convolutional network for images that trains in seconds on a CPU."""

from __future__ import annotations

import math
from typing import Final, Literal

from torch import Tensor, nn

from train.data.shape import Shape
from train.models.layers import NormName, Residual, Scale, conv_norm_relu, init_conv_weights, require_integers

MIN_IMAGE_SIZE: Final = 8  # pixels: three halvings leave one


class GlobalMaxPool(nn.Module):
    """The maximum over all pixels."""

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, h, w] to [n, channels]."""
        return x.amax((2, 3))


def small_cnn(
    *,
    classes: int,
    shape: Shape,
    width: int = 16,
    blocks: int = 1,
    norm: NormName = "group",
    dropout: float = 0.0,
    pool: Literal["late", "early"] = "late",
) -> nn.Module:
    """Three stages with width, 2 width and 4 width channels, then one linear layer.

    Each stage halves the image. The norm is GroupNorm by default: with BatchNorm the result depends
    on the size of the micro batch.

    pool: `late` halves the image at the end of each stage; the last layer sees positions. `early`
    halves it right after the stage's first convolution, so norms and blocks have a quarter of the
    work; the last layer sees each feature's maximum over all pixels.

    Raises:
        ValueError: for images smaller than 8 pixels, and for bad arguments.
    """
    require_integers(1, width=width)
    require_integers(0, blocks=blocks)
    if pool not in ("late", "early"):
        raise ValueError(f"pool must be late or early, not {pool!r}")
    if min(shape.size) < MIN_IMAGE_SIZE:
        raise ValueError(f"images must have {MIN_IMAGE_SIZE} pixels or more in each direction")
    layers = _stage(shape.channels, width, 0, norm, pool)
    for channels in (width, 2 * width):
        layers += _stage(channels, 2 * channels, blocks, norm, pool)
    pooling, features = _pooling(shape, width, pool)
    # Scale the feature vector to a length of about 6, whatever its size. Otherwise a learning rate that
    # suits the convolutions is too large for the last layer, which then ruins them in the first steps.
    head = [*pooling, Scale(6 / math.sqrt(features)), nn.Dropout(dropout)]
    net = nn.Sequential(*layers, *head, nn.Linear(features, classes))
    init_conv_weights(net)
    return net


def _stage(inside: int, outside: int, blocks: int, norm: NormName, pool: str) -> list[nn.Module]:
    first = conv_norm_relu(inside, outside, norm)
    inner = [Residual(*conv_norm_relu(outside, outside, norm)) for _ in range(blocks)]
    halving = nn.MaxPool2d(2)
    return [first[0], halving, *first[1:], *inner] if pool == "early" else [*first, *inner, halving]


def _pooling(shape: Shape, width: int, pool: str) -> tuple[list[nn.Module], int]:
    """The layers between the last stage and the features, and the number of features."""
    if pool == "early":
        return [GlobalMaxPool()], 4 * width
    height, across = (side // 8 for side in shape.size)
    mean = max(1, min(height, across) // 4)
    return [nn.AvgPool2d(mean), nn.Flatten()], 4 * width * (height // mean) * (across // mean)
