"""Networks by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from entrypoint import Failure
from train import models
from train.config import Model
from train.shape import Shape


def build(name: str = "small_cnn", *, size: int = 32, classes: int = 10, seed: int = 0, **args: Any) -> nn.Module:
    return models.build(
        Model(name=name, args=args), classes=classes, shape=Shape(channels=3, size=(size, size)), seed=seed
    )


@pytest.mark.parametrize("name", models.MODELS)
@pytest.mark.parametrize("size", [32, 64, 96])
def test_every_model_takes_its_images_and_gives_one_score_per_class(name: str, size: int) -> None:
    with torch.no_grad():
        assert build(name, size=size, classes=7)(torch.zeros(2, 3, size, size)).shape == (2, 7)


@pytest.mark.parametrize("name", models.MODELS)
def test_first_weights_depend_on_the_seed_alone(name: str) -> None:
    torch.manual_seed(99)
    first = build(name, seed=5).state_dict()
    torch.manual_seed(1)
    second = build(name, seed=5).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_another_seed_gives_other_weights() -> None:
    first, second = (next(build(seed=seed).parameters()) for seed in (0, 1))
    assert not torch.equal(first, second)


def test_a_network_without_batch_norm_has_no_buffers_to_share() -> None:
    assert not list(build().buffers())
    assert list(build(norm="batch").buffers())


def test_small_images_meet_a_resnet_without_strides_in_its_stem() -> None:
    small, large = build("resnet18", size=32), build("resnet18", size=224)
    assert [net.conv1.stride for net in (small, large)] == [(1, 1), (2, 2)]
    assert isinstance(small.maxpool, nn.Identity)


def test_parameters_are_counted() -> None:
    assert models.parameters(nn.Linear(3, 4)) == 16


@pytest.mark.parametrize(
    ("name", "args", "named"),
    [
        ("small_cnn", {"widht": 8}, "widht"),
        ("small_cnn", {"norm": "layer"}, "layer"),
        ("small_cnn", {"width": -1}, "width"),
        ("resnet18", {"depth": 50}, "depth"),
    ],
    ids=lambda value: str(value),
)
def test_arguments_that_do_not_fit_are_refused(name: str, args: dict[str, Any], named: str) -> None:
    with pytest.raises(Failure, match=f"model.args do not fit {name}") as caught:
        build(name, **args)
    assert caught.value.code == 64
    assert named in str(caught.value)
