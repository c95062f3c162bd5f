"""A network without corners: where ReLU or max-pooling bend, a rounding error in the last bit may turn a gradient on
or off, and two right answers to the same training differ by far more than rounding."""

from __future__ import annotations

from torch import nn

from train.data.shape import Shape


def make(classes: int, shape: Shape) -> nn.Module:
    """`model.name: smooth:make`, two convolutions and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(shape.channels, 8, 3, stride=2, padding=1),
        nn.GroupNorm(2, 8),
        nn.GELU(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, classes),
    )
