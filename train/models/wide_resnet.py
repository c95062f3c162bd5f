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
FINAL_FEATURE_SIZE: Final = (
    8  # rows and columns of the last features for 32 pixels; AvgPool(7) makes one number of them
)


class WideResNetBlock(nn.Module):
    """Two convolutions with BatchNorm around a skip, which is a 1x1 convolution where the width changes."""

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
    """depth: blocks in each of the three groups. width: how many times 16, 32 and 64 channels they have.

    For 100 classes, 3 channels, 32 pixels: 17,175,444 parameters in 47 tensors; 39 buffers (3 of each of 13
    BatchNorms); 14.47 GFLOP per image forward and backward.

    Raises:
        ValueError: for images smaller than 4 pixels, and arguments without sense.
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
    """AvgPool(7) of 8 x 8 leaves the last row and column out, as the published numbers do; else all are used."""
    if all(side // 4 == FINAL_FEATURE_SIZE for side in shape.size):
        return [nn.AvgPool2d(7), nn.Flatten()]
    return [GlobalAvgPool()]
