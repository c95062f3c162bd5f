"""timm's models, built with the classes, channels and image size of the data."""

from __future__ import annotations

import socket
from typing import Any

import pytest
import torch
from torch import nn

from entrypoint import Failure
from train.config.schema import ModelConfig
from train.data.shape import Shape
from train.models import registry

SMALL = ("timm/test_resnet", "timm/test_vit", "timm/test_convnext", "timm/test_efficientnet", "timm/test_mambaout")


def build(name: str, *, size: int = 32, channels: int = 3, seed: int = 0, **args: Any) -> nn.Module:
    shape = Shape(channels=channels, size=(size, size))
    return registry.build_model(ModelConfig(name=name, args=args), classes=5, shape=shape, seed=seed)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_a_model_has_the_classes_channels_and_size_of_the_data(name: str, channels: int) -> None:
    net = build(name, size=64, channels=channels)
    assert net(torch.zeros(2, channels, 64, 64)).shape == (2, 5)
    assert net.training


def test_first_weights_depend_on_the_seed_alone() -> None:
    first, second, other = (build("timm/test_vit", seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["patch_embed.proj.weight"], other["patch_embed.proj.weight"])


def test_arguments_reach_the_constructor() -> None:
    rates = [module.drop_prob for module in build("timm/test_vit", drop_path_rate=0.5).modules()
             if type(module).__name__ == "DropPath"]  # fmt: skip
    assert max(rates) == 0.5


def test_building_asks_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError(f"a build connects to {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    build("timm/test_resnet")


@pytest.mark.parametrize(
    ("name", "size", "args", "words"),
    [
        ("timm/test_resnet", 32, {"depht": 3}, ("model.args do not fit", "depht", "drop_path_rate")),
        ("timm/test_vit", 33, {}, ("does not take samples", "divisible", "64 pixels are enough")),
        ("timm/test_vit", 32, {"img_size": 64}, ("cannot set img_size", "the data decides")),
        ("timm/test_resnet", 32, {"checkpoint_path": "x"}, ("cannot set checkpoint_path", "nothing is downloaded")),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(name: str, size: int, args: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(Failure) as caught:
        build(name, size=size, **args)
    assert caught.value.code == 64
    assert [word for word in words if word not in str(caught.value)] == []


def test_the_trial_leaves_nothing_in_a_model_that_keeps_tensors() -> None:
    net = build("timm/coat_tiny", size=64)
    assert net(torch.zeros(2, 3, 64, 64)).shape == (2, 5)
