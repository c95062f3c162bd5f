"""Layers are numbered by their depth, and `train.activation_checkpointing` keeps fewer of their activations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import trained
from torch import Tensor, nn

from entrypoint import Failure
from train.config import load
from train.config.checks import refuse_conflicts
from train.config.schema import ModelConfig
from train.data.shape import Shape
from train.models import depth, registry
from train.models.depth import enable_activation_checkpointing, layer_numbers


def build(name: str, **args: Any) -> nn.Module:
    shape = Shape(channels=3, size=(32, 32))
    return registry.build_model(ModelConfig(name=name, args=args), classes=3, shape=shape, seed=0)


def step(net: nn.Module) -> dict[str, Tensor]:
    """The state and the gradients after a forward and a backward pass."""
    torch.manual_seed(3)
    net(torch.randn(4, 3, 32, 32)).square().sum().backward()
    gradients = {f"gradient of {name}": tensor.grad.clone() for name, tensor in net.named_parameters()}  # type: ignore[union-attr]
    return {**net.state_dict(), **gradients}


@pytest.mark.parametrize(
    ("name", "args", "count"),
    [
        ("resnet18", {}, 8),
        ("wide_resnet", {"depth": 2, "width": 1, "dropout": 0.5}, 6),
        ("timm/test_vit", {"drop_path_rate": 0.5, "proj_drop_rate": 0.2}, 6),
        ("timm/test_resnet", {}, 4),
    ],
)
def test_state_and_gradients_are_the_same_bits(name: str, args: dict[str, Any], count: int) -> None:
    plain, checkpointed = build(name, **args), build(name, **args)
    enable_activation_checkpointing(checkpointed, name)
    assert len(depth.blocks(plain)) == count
    expected, actual = step(plain), step(checkpointed)
    assert [key for key in expected if not torch.equal(expected[key], actual[key])] == []
    assert expected.keys() == actual.keys()


def test_fewer_activations_are_kept() -> None:
    kept: list[int] = []
    sizes = {}
    for enabled in (False, True):
        net = build("resnet18")
        if enabled:
            enable_activation_checkpointing(net, "resnet18")
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: kept.append(tensor.numel()) or tensor,  # type: ignore[func-returns-value]
            lambda tensor: tensor,
        ):
            net(torch.randn(4, 3, 32, 32))
        sizes[enabled] = sum(kept)
    assert sizes[True] < sizes[False] / 2


def test_a_training_has_the_same_bits(tmp_path: Path) -> None:
    settings = ("model.name=wide_resnet", "model.args={depth: 1, width: 1, dropout: 0.3}", "train.max_steps=3")
    settings = (*settings, "data.image_size=8")
    plain = trained(tmp_path / "plain", *[word for word in settings])
    checkpointed = trained(tmp_path / "less", *settings, "train.activation_checkpointing=true")
    plain_state, checkpointed_state = plain.state.network.state_dict(), checkpointed.state.network.state_dict()
    assert all(torch.equal(tensor, checkpointed_state[name]) for name, tensor in plain_state.items())


def test_a_network_without_blocks_is_refused() -> None:
    with pytest.raises(Failure, match="does not fit squeezenet1_1") as caught:
        enable_activation_checkpointing(nn.Sequential(nn.Linear(2, 2)), "squeezenet1_1")
    assert caught.value.code == 64


@pytest.mark.parametrize("setting", ["train.parallel=dp", "train.compile=default"])
def test_what_it_does_not_go_with_is_refused(setting: str) -> None:
    config = load.load_config(None, ["train.activation_checkpointing=true", setting])
    with pytest.raises(Failure, match="does not go with"):
        refuse_conflicts(config)


@pytest.mark.parametrize(
    "name", ["small_cnn", "wide_resnet", "resnet18", "vit_b_32", "squeezenet1_1", "timm/test_vit", "timm/test_resnet"]
)
def test_layers_are_numbered_from_the_input_to_the_head_without_gaps(name: str) -> None:
    net = build(name)
    numbers = layer_numbers(net)
    assert numbers.keys() == dict(net.named_parameters()).keys()
    assert set(numbers.values()) == set(range(max(numbers.values()) + 1))
    first, *_, last = numbers
    assert numbers[first] == 0
    assert numbers[last] == max(numbers.values()) >= 2


def test_the_blocks_of_a_resnet_are_its_layers() -> None:
    numbers = layer_numbers(build("resnet18"))
    assert numbers["layer1.0.conv1.weight"] == numbers["layer1.0.bn2.bias"] < numbers["layer1.1.conv1.weight"]
    assert numbers["layer4.1.conv2.weight"] == numbers["fc.weight"] - 1


def test_the_blocks_of_a_vision_transformer_are_its_layers() -> None:
    for name, block in (("vit_b_32", "encoder.layers.encoder_layer_{}."), ("timm/test_vit", "blocks.{}.")):
        numbers = layer_numbers(build(name))
        of_block = [{layer for key, layer in numbers.items() if key.startswith(block.format(n))} for n in range(3)]
        assert [len(layers) for layers in of_block] == [1, 1, 1]
        assert sorted(max(layers) for layers in of_block) == [max(layers) for layers in of_block]
