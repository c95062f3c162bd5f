"""`optim.layer_decay`: each layer learns more slowly than the one after it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from train.config.schema import ModelConfig, OptimConfig
from train.data.shape import Shape
from train.models import registry
from train.models.depth import layer_numbers
from train.optim import optimizer


def build(name: str) -> nn.Module:
    return registry.build_model(ModelConfig(name=name), classes=3, shape=Shape(channels=3, size=(32, 32)), seed=0)


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


@pytest.mark.parametrize("weight_decay_on", ["all", "weights"])
def test_every_parameter_is_in_one_group_with_the_rate_of_its_layer(weight_decay_on: str) -> None:
    net = build("resnet18")
    optim = OptimConfig(layer_decay=0.5, weight_decay_on=weight_decay_on)  # type: ignore[arg-type]
    groups = optimizer.param_groups(net, optim)
    numbers = layer_numbers(net)
    last = max(numbers.values())
    scales = {id(parameter): group["lr_scale"] for group in groups for parameter in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(scales) == len(list(net.parameters()))
    for name, parameter in net.named_parameters():
        assert scales[id(parameter)] == 0.5 ** (last - numbers[name])
    without = {id(p) for group in groups if group.get("weight_decay") == 0.0 for p in group["params"]}
    flat = {id(p) for p in net.parameters() if p.dim() <= 1}
    assert without == (flat if weight_decay_on == "weights" else set())


def test_the_schedule_is_multiplied_in_each_step() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    made = optimizer.build_optimizer(OptimConfig(lr=1.0, layer_decay=0.1), net)
    optimizer.set_learning_rate(made, 0.5)
    assert [group["lr"] for group in made.param_groups] == pytest.approx([0.05, 0.5])
    state = made.state_dict()
    made.load_state_dict(state)
    optimizer.set_learning_rate(made, 0.2)
    assert [group["lr"] for group in made.param_groups] == pytest.approx([0.02, 0.2])


def test_frozen_layers_are_in_no_group() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).requires_grad_(False)
    net[1].requires_grad_(True)
    (group,) = optimizer.param_groups(net, OptimConfig(layer_decay=0.1))
    assert group["lr_scale"] == 1.0
    assert all(map(torch.equal, group["params"], net[1].parameters()))
