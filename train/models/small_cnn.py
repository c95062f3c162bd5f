"""Builds a small convolutional network for images that trains in seconds on a CPU."""

from __future__ import annotations

import math
from typing import Final, Literal

import torch
from torch import Tensor, nn

from train.data.shape import Shape
from train.models.layers import NormName, Residual, Scale, conv_norm_relu, init_conv_weights, require_integers

MIN_IMAGE_SIZE: Final = 8  # pixels: three halvings leave one


# The variances of 2 x 2 pixels of CIFAR-10's training images, normalized by default, along COLORS (rows) and PATTERNS.
# Constants, so that the network does not depend on the data: of other images they are an approximation.
PATCH_VARIANCES: Final = (
    (11.2, 0.505, 0.297, 0.0576),
    (1.05, 0.00839, 0.00411, 0.000245),
    (0.147, 0.00266, 0.00152, 0.000141),
)
COLORS: Final = ((1, 1, 1), (1, 0, -1), (1, -2, 1))  # brightness, red against blue, green against both
# Of the upper left, upper right, lower left and lower right pixel.
PATTERNS: Final = ((1, 1, 1, 1), (1, 1, -1, -1), (1, -1, 1, -1), (1, -1, -1, 1))
LEAST_VARIANCE: Final = 5e-4  # so that noise is not enlarged as much


class WhitenedPatches(nn.Module):
    """Makes the pixels and colours of each 2 x 2 patch uncorrelated, and of variance 1: weights that are not trained.

    The channels are 12 and their negatives, for the ReLU that follows. As in "94% on CIFAR-10 in 3.29 Seconds on a
    Single GPU" (Jordan, 2024), but with a fixed basis instead of the data's own.
    """

    channels: Final = 24
    weight: Tensor

    def __init__(self) -> None:
        super().__init__()
        colors, patterns = torch.tensor(COLORS, dtype=torch.float32), torch.tensor(PATTERNS, dtype=torch.float32) / 2
        colors = colors / colors.norm(dim=1, keepdim=True)
        spread = (torch.tensor(PATCH_VARIANCES) + LEAST_VARIANCE).sqrt()
        weight = torch.einsum("kc,fp,kf->kfcp", colors, patterns, 1 / spread).reshape(-1, 3, 2, 2)
        self.register_buffer("weight", torch.cat([weight, -weight]), persistent=False)
        self.bias = nn.Parameter(torch.zeros(self.channels))

    def forward(self, x: Tensor) -> Tensor:
        """[n, 3, h, w] to [n, 24, h - 1, w - 1]."""
        return nn.functional.conv2d(x, self.weight, self.bias)


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
    stem: Literal["plain", "whitened"] = "plain",
) -> nn.Module:
    """Three stages with width, 2 width and 4 width channels, then one linear layer.

    Each stage halves the image. The norm is GroupNorm by default: with BatchNorm the result depends
    on the size of the micro batch.

    pool: `late` halves the image at the end of each stage; the last layer sees positions. `early`
    halves it right after the stage's first convolution, so norms and blocks have a quarter of the
    work; the last layer sees each feature's maximum over all pixels.

    stem: with `whitened` a layer that is not trained, `WhitenedPatches`, comes first, and all three stages have blocks.

    Raises:
        ValueError: for images smaller than 8 pixels (9 with a whitened stem), and for bad arguments.
    """
    require_integers(1, width=width)
    require_integers(0, blocks=blocks)
    if pool not in ("late", "early"):
        raise ValueError(f"pool must be late or early, not {pool!r}")
    least = MIN_IMAGE_SIZE + (stem == "whitened")  # whose patches are one less than the pixels
    if min(shape.size) < least:
        raise ValueError(f"images must have {least} pixels or more in each direction")
    if stem not in ("plain", "whitened"):
        raise ValueError(f"stem must be plain or whitened, not {stem!r}")
    if stem == "plain":
        layers = _stage(shape.channels, width, 0, norm, pool)
    elif (shape.channels, pool) == (3, "early"):
        layers = [WhitenedPatches(), nn.ReLU(inplace=True)]
        layers += _stage(WhitenedPatches.channels, width, blocks, norm, pool)
    else:
        raise ValueError(f"stem whitened needs pool early and images of 3 channels; it got {pool} and {shape.channels}")
    for channels in (width, 2 * width):
        layers += _stage(channels, 2 * channels, blocks, norm, pool)
    pooling, features = _pooling(shape, 4 * width, pool)
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


def _pooling(shape: Shape, channels: int, pool: str) -> tuple[list[nn.Module], int]:
    """The layers between the last stage and the features, and the number of features."""
    if pool == "early":
        return [GlobalMaxPool()], channels
    height, across = (side // 8 for side in shape.size)
    mean = max(1, min(height, across) // 4)
    return [nn.AvgPool2d(mean), nn.Flatten()], channels * (height // mean) * (across // mean)
