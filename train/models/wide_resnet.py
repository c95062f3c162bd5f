"""The reference workload: a Wide-ResNet for 32 pixel images, layer by layer as the published guide has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from torch import Tensor, nn
from torch.nn.functional import relu

from train.data.shape import Shape
from train.models.layers import Mean, spread, whole

STEM: Final = 16  # channels; the groups have 1, 2 and 4 times `width` times as many
POOLED: Final = 8  # rows and columns of the last features for 32 pixels; AvgPool(7) makes one number of them


class Block(nn.Module):
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
    whole(1, depth=depth, width=width)
    if min(shape.size) < 4:
        raise ValueError("images must have 4 pixels or more in each direction")
    net = nn.Sequential(
        nn.Conv2d(shape.channels, STEM, 3, padding=1, bias=False),
        nn.BatchNorm2d(STEM),
        nn.ReLU(inplace=True),
        *_group(STEM, STEM * width, depth, dropout),
        nn.MaxPool2d(2),
        *_group(STEM * width, 2 * STEM * width, depth, dropout),
        nn.MaxPool2d(2),
        *_group(2 * STEM * width, 4 * STEM * width, depth, dropout),
        *_pooled(shape),
        nn.Linear(4 * STEM * width, classes),
    )
    spread(net)
    return net


def _group(inside: int, outside: int, depth: int, dropout: float) -> Iterator[nn.Module]:
    for _ in range(depth):
        yield Block(inside, outside, dropout)
        inside = outside


def _pooled(shape: Shape) -> list[nn.Module]:
    """AvgPool(7) of 8 x 8 leaves the last row and column out, as the published numbers do; else all are used."""
    if all(side // 4 == POOLED for side in shape.size):
        return [nn.AvgPool2d(7), nn.Flatten()]
    return [Mean()]
