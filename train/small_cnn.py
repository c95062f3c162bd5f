"""A convolutional network for small images that trains in seconds on a CPU."""

from __future__ import annotations

import math
from typing import Final

from torch import nn

from train.layers import Norm, Residual, Scaled, conv, spread, whole
from train.shape import Shape

LEAST: Final = 8  # pixels: three times halved, one is left


def small_cnn(
    *, classes: int, shape: Shape, width: int = 16, blocks: int = 1, norm: Norm = "group", dropout: float = 0.0
) -> nn.Module:
    """Three stages at width, 2 width and 4 width channels, each halving the image, then one linear layer.

    GroupNorm by default: with BatchNorm the result depends on the size of the micro batch.

    Raises:
        ValueError: for images smaller than 8 pixels, and arguments without sense.
    """
    whole(1, width=width)
    whole(0, blocks=blocks)
    if min(shape.size) < LEAST:
        raise ValueError(f"images must have {LEAST} pixels or more in each direction")
    height, across = (side // 8 for side in shape.size)
    pool = max(1, min(height, across) // 4)
    features = 4 * width * (height // pool) * (across // pool)
    layers = [*conv(shape.channels, width, norm), nn.MaxPool2d(2)]
    for channels in (width, 2 * width):
        layers += conv(channels, 2 * channels, norm)
        layers += [Residual(*conv(2 * channels, 2 * channels, norm)) for _ in range(blocks)]
        layers += [nn.MaxPool2d(2)]
    # Features of length 6 or so, however many there are: else a learning rate that suits the convolutions is too
    # large for the last layer, which then destroys all before it in the first steps.
    head = [nn.AvgPool2d(pool), nn.Flatten(), Scaled(6 / math.sqrt(features)), nn.Dropout(dropout)]
    net = nn.Sequential(*layers, *head, nn.Linear(features, classes))
    spread(net)
    return net
