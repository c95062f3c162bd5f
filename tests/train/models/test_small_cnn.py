"""The network of the quickstart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from train.data.shape import Shape
from train.models.small_cnn import (
    COLORS,
    LEAST_VARIANCE,
    PATCH_VARIANCES,
    PATTERNS,
    WhitenedPatches,
    small_cnn,
)


def net(size: tuple[int, int] = (32, 32), channels: int = 3, **args: Any) -> nn.Module:
    return small_cnn(classes=7, shape=Shape(channels=channels, size=size), **args)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [(8, 8), (28, 28), (96, 96), (16, 40), (9, 100)], ids=str)
def test_it_takes_images_of_any_size(size: tuple[int, int], channels: int) -> None:
    assert net(size, channels)(torch.zeros(2, channels, *size)).shape == (2, 7)


@pytest.mark.parametrize("size", [(8, 8), (28, 28), (9, 100)], ids=str)
def test_halving_early_takes_images_of_any_size_too(size: tuple[int, int]) -> None:
    assert net(size, pool="early")(torch.zeros(2, 3, *size)).shape == (2, 7)


def test_halving_early_leaves_the_convolutions_as_they_are() -> None:
    late, early = ([w.shape for w in net(pool=pool).parameters() if w.dim() == 4] for pool in ("late", "early"))
    assert late == early


def test_halving_early_makes_most_convolutions_see_a_smaller_image() -> None:
    def seen(pool: str) -> list[int]:
        sides: list[int] = []
        made = net(pool=pool)
        for module in made.modules():
            if isinstance(module, nn.Conv2d):
                module.register_forward_hook(lambda _, given, __: sides.append(given[0].shape[-1]))
        made(torch.zeros(1, 3, 32, 32))
        return sides

    assert (seen("late"), seen("early")) == ([32, 16, 16, 8, 8], [32, 16, 8, 8, 4])


def test_an_unknown_place_to_halve_is_refused() -> None:
    with pytest.raises(ValueError, match="late or early"):
        net(pool="never")


def test_a_network_without_batch_norm_has_no_buffers_to_share() -> None:
    assert not list(net().buffers())
    assert list(net(norm="batch").buffers())


@pytest.mark.parametrize("size", [(7, 32), (32, 7), (1, 1)], ids=str)
def test_images_that_cannot_be_halved_three_times_are_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="8 pixels or more"):
        net(size)


@pytest.mark.parametrize("size", [(9, 9), (28, 28), (9, 100)], ids=str)
def test_a_whitened_stem_takes_images_of_any_size_too(size: tuple[int, int]) -> None:
    assert net(size, pool="early", stem="whitened")(torch.zeros(2, 3, *size)).shape == (2, 7)


def test_whitened_patches_are_uncorrelated_and_of_variance_1() -> None:
    """Of pixels whose patterns have the variances that photographs have."""
    generator = torch.Generator().manual_seed(0)
    colors = torch.tensor(COLORS, dtype=torch.float64)
    colors /= colors.norm(dim=1, keepdim=True)
    patterns = torch.tensor(PATTERNS, dtype=torch.float64) / 2
    spread = (torch.tensor(PATCH_VARIANCES, dtype=torch.float64) + LEAST_VARIANCE).sqrt()
    drawn = torch.randn(100_000, 3, 4, generator=generator, dtype=torch.float64) * spread
    patches = torch.einsum("nkf,kc,fp->ncp", drawn, colors, patterns).float().view(-1, 3, 2, 2)
    whitened = WhitenedPatches()(patches)[:, :12, 0, 0].detach()
    assert torch.allclose(whitened.T.cov(), torch.eye(12), atol=0.03)


def test_whitening_is_not_trained() -> None:
    made = net(pool="early", stem="whitened")
    assert not any(values.shape[-2:] == (2, 2) for values in (*made.parameters(), *made.state_dict().values()))


@pytest.mark.parametrize(
    ("args", "channels", "problem"),
    [
        ({"stem": "other"}, 3, "plain or whitened"),
        ({"stem": "whitened"}, 3, "needs pool early"),
        ({"stem": "whitened", "pool": "early"}, 1, "images of 3 channels"),
        ({"stem": "whitened", "pool": "early", "size": (8, 8)}, 3, "9 pixels or more"),
    ],
    ids=["unknown", "late", "gray", "small"],
)
def test_what_a_whitened_stem_cannot_do_is_refused(args: dict[str, Any], channels: int, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        net(channels=channels, **args)
