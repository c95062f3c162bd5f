"""Builds the reference workload: a Wide-ResNet for images of 32 pixels.

The layers are those of the published guide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torch import Tensor, nn
from torch.nn.functional import relu

from train.data.shape import Shape
from train.models.layers import GlobalAvgPool, init_conv_weights, require_integers

STEM_CHANNELS: Final = 16  # channels; the groups have 1, 2 and 4 times `width` times as many
FINAL_FEATURE_SIZE: Final = 8  # rows and columns of the last features, for images of 32 pixels


class WideResNetBlock(nn.Module):
    """Two convolutions with BatchNorm and a skip, which is a 1x1 convolution if the width changes."""

    def __init__(self, inside: int, outside: int, dropout: float) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.skip = nn.Conv2d(inside, outside, 1) if inside != outside else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """[n, inside, h, w] to [n, outside, h, w]."""
        inner = self.dropout(relu(self.norm1(self.conv1(x)), inplace=True))
        return relu(self.norm2(self.conv2(inner)) + self.skip(x), inplace=True)


def wide_resnet(*, classes: int, shape: Shape, depth: int = 2, width: int = 10, dropout: float = 0.01) -> nn.Module:
    """Build a Wide-ResNet with three groups of blocks.

    depth: the blocks of each group. width: the groups have 16, 32 and 64 times `width` channels.

    For 100 classes, 3 channels and 32 pixels, by default: 17,175,444 parameters in 47 tensors; 39
    buffers (3 of each of 13 BatchNorms); 14.47 GFLOP per image, forward and backward.

    Raises:
        ValueError: for images smaller than 4 pixels, and for bad arguments.
    """
    require_integers(1, depth=depth, width=width)
    if min(shape.size) < 4:
        raise ValueError("images must have 4 pixels or more in each direction")
    net = nn.Sequential(
        nn.Conv2d(shape.channels, STEM_CHANNELS, 3, padding=1, bias=False),
        nn.BatchNorm2d(STEM_CHANNELS),
        nn.ReLU(inplace=True),
        *_block_group(STEM_CHANNELS, STEM_CHANNELS * width, depth, dropout),
        nn.MaxPool2d(2),
        *_block_group(STEM_CHANNELS * width, 2 * STEM_CHANNELS * width, depth, dropout),
        nn.MaxPool2d(2),
        *_block_group(2 * STEM_CHANNELS * width, 4 * STEM_CHANNELS * width, depth, dropout),
        *_final_pooling(shape),
        nn.Linear(4 * STEM_CHANNELS * width, classes),
    )
    init_conv_weights(net)
    return net


def _block_group(inside: int, outside: int, depth: int, dropout: float) -> Iterator[nn.Module]:
    for _ in range(depth):
        yield WideResNetBlock(inside, outside, dropout)
        inside = outside


def _final_pooling(shape: Shape) -> list[nn.Module]:
    """The layers between the last group and the features.

    For 8 x 8 features it is AvgPool(7), which skips the last row and column: the published numbers
    were measured like this. For other sizes it is the mean of all.
    """
    if all(side // 4 == FINAL_FEATURE_SIZE for side in shape.size):
        return [nn.AvgPool2d(7), nn.Flatten()]
    return [GlobalAvgPool()]
