"""The network for clips."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from train.data.shape import Shape
from train.models.cnn3d import cnn3d


def net(size: tuple[int, int, int] = (8, 32, 32), channels: int = 3, **args: Any) -> nn.Module:
    return cnn3d(classes=7, shape=Shape(channels=channels, size=size), **args)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(1, 1, 1), (2, 8, 8), (16, 24, 40), (5, 31, 33)], ids=str)
def test_it_takes_clips_of_any_size(size: tuple[int, int, int], channels: int) -> None:
    assert net(size, channels)(torch.zeros(2, channels, *size)).shape == (2, 7)


def test_the_order_of_frames_matters() -> None:
    torch.manual_seed(0)
    clips = torch.randn(1, 3, 8, 32, 32)
    model = net()
    assert not torch.allclose(model(clips), model(clips.flip(2)))


def test_width_blocks_and_dropout_are_arguments() -> None:
    model = net(width=4, blocks=2, dropout=0.5)
    assert sum(isinstance(m, nn.Conv3d) for m in model.modules()) == 7
    assert any(isinstance(m, nn.Dropout) and m.p == 0.5 for m in model.modules())


def test_it_learns_which_way_things_move() -> None:
    torch.manual_seed(0)
    still = torch.randn(64, 1, 1, 8, 8)
    clips = torch.cat([still.roll(step, dims=4) for step in range(4)], dim=2)
    clips[32:] = clips[32:].flip(2)
    labels = torch.arange(64) // 32
    model = net((4, 8, 8), channels=1, width=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(30):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(clips), labels)
        loss.backward()
        optimizer.step()
    assert (model(clips).argmax(1) == labels).float().mean() > 0.9
