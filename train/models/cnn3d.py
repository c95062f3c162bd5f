"""Builds a 3-D convolutional network for clips, which treats frames, rows and columns alike."""

from __future__ import annotations

import math

from torch import nn

from train.data.shape import Shape
from train.models.layers import (
    GlobalAvgPool,
    NormName,
    Residual,
    Scale,
    conv_norm_relu,
    init_conv_weights,
    require_integers,
)


def cnn3d(
    *, classes: int, shape: Shape, width: int = 16, blocks: int = 1, norm: NormName = "group", dropout: float = 0.0
) -> nn.Module:
    """Three stages with width, 2 width and 4 width channels, then a global mean and one linear layer.

    Every stage halves rows and columns; the last two also halve the frames. They use strides instead
    of pooling: on a GPU the gradient of 3-D pooling varies from run to run in its last bits.

    Raises:
        ValueError: for bad arguments.
    """
    require_integers(1, width=width)
    require_integers(0, blocks=blocks)
    layers = conv_norm_relu(shape.channels, width, norm, dims=3, stride=(1, 2, 2))
    for channels in (width, 2 * width):
        layers += conv_norm_relu(channels, 2 * channels, norm, dims=3, stride=2)
        layers += [Residual(*conv_norm_relu(2 * channels, 2 * channels, norm, dims=3)) for _ in range(blocks)]
    features = 4 * width
    # As in small_cnn: scale the feature vector to a length of about 6.
    head = [GlobalAvgPool(), Scale(6 / math.sqrt(features)), nn.Dropout(dropout), nn.Linear(features, classes)]
    net = nn.Sequential(*layers, *head)
    init_conv_weights(net)
    return net
