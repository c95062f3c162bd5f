"""The pieces of the networks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from train.models import layers


def test_a_residual_adds_its_input() -> None:
    assert layers.Residual(nn.Identity())(torch.ones(2)).tolist() == [2, 2]


def test_scaled_multiplies() -> None:
    assert layers.Scale(3)(torch.ones(2)).tolist() == [3, 3]


@pytest.mark.parametrize("size", [(4, 6), (2, 4, 6)])
def test_the_mean_is_over_all_places_and_frames(size: tuple[int, ...]) -> None:
    x = torch.randn(2, 5, *size)
    assert torch.allclose(layers.GlobalAvgPool()(x), x.mean(tuple(range(2, x.dim()))), atol=1e-6)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("norm", ["group", "batch", "none"])
def test_a_convolution_keeps_the_size(dims: int, norm: Any) -> None:
    net = nn.Sequential(*layers.conv_norm_relu(3, 8, norm, dims=dims))
    assert net(torch.zeros(2, 3, *[5] * dims)).shape == (2, 8, *[5] * dims)


def test_a_convolution_before_a_norm_has_no_bias() -> None:
    assert [layers.conv_norm_relu(3, 8, norm)[0].bias is None for norm in ("group", "batch", "none")] == [
        True,
        True,
        False,
    ]  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1, 2.0, "4", None, True, [1], float("nan")], ids=str)
def test_what_is_no_whole_number_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match="width must be a whole number, 1 or more, not"):
        layers.require_integers(1, width=value)
