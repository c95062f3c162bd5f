"""The reference workload, number by number."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from train.data.shape import Shape
from train.models.wide_resnet import wide_resnet


def net(size: tuple[int, int] = (32, 32), channels: int = 3, **args: Any) -> nn.Module:
    return wide_resnet(classes=100, shape=Shape(channels=channels, size=size), **args)


@pytest.fixture(scope="module")
def reference() -> nn.Module:
    return net()


def test_it_has_the_published_number_of_parameters(reference: nn.Module) -> None:
    assert sum(parameter.numel() for parameter in reference.parameters()) == 17_175_444


def test_they_are_47_tensors_beside_39_buffers(reference: nn.Module) -> None:
    assert (len(list(reference.parameters())), len(list(reference.buffers()))) == (47, 39)


def test_one_image_costs_14_47_gflop_forward_and_backward() -> None:
    counter = FlopCounterMode(display=False)
    with counter, torch.device("meta"):  # counted, not computed
        net()(torch.zeros(2, 3, 32, 32)).sum().backward()
    assert counter.get_total_flops() / 2 / 1e9 == pytest.approx(14.47, abs=0.005)


def test_at_32_pixels_the_last_row_and_column_are_left_out_as_published(reference: nn.Module) -> None:
    pools = [module for module in reference.modules() if isinstance(module, nn.AvgPool2d | nn.MaxPool2d)]
    assert [pool.kernel_size for pool in pools] == [2, 2, 7]


def test_only_the_skips_that_change_the_width_have_weights_and_a_bias(reference: nn.Module) -> None:
    with_bias = [m for m in reference.modules() if isinstance(m, nn.Conv2d) and m.bias is not None]
    assert [(m.kernel_size, m.out_channels) for m in with_bias] == [((1, 1), 160), ((1, 1), 320), ((1, 1), 640)]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [(4, 4), (28, 28), (32, 32), (33, 35), (32, 48)], ids=str)
def test_it_takes_images_of_other_sizes(size: tuple[int, int], channels: int) -> None:
    assert net(size, channels, width=1, depth=1)(torch.zeros(2, channels, *size)).shape == (2, 100)


def test_depth_and_width_are_arguments() -> None:
    assert sum(p.numel() for p in net(depth=1).parameters()) < sum(p.numel() for p in net().parameters())
    assert next(m for m in reversed(list(net(width=2).modules())) if isinstance(m, nn.Linear)).in_features == 128


def test_images_that_cannot_be_halved_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="4 pixels or more"):
        net((3, 32))
