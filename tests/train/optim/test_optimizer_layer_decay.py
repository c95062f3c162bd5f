"""`optim.layer_decay`: each layer learns more slowly than the one after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any

import pytest
import timm
import torch
import torchvision
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import nn

from entrypoint import Failure
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


WEIGHTS_ONLY = OptimConfig(weight_decay=0.1, weight_decay_on="weights")


def names_of(net: nn.Module, groups: Sequence[Mapping[str, Any]]) -> dict[tuple[float, float], set[str]]:
    """The names of the parameters of each weight decay and scale of the learning rate."""
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    sets: dict[tuple[float, float], set[str]] = {}
    for group in groups:
        key = (group.get("weight_decay", 0.1), group.get("lr_scale", 1.0))
        sets.setdefault(key, set()).update(names[id(parameter)] for parameter in group["params"])
    return sets


def undecayed(net: nn.Module, optim: OptimConfig = WEIGHTS_ONLY) -> set[str]:
    """The names of the parameters of several dimensions that get no weight decay."""
    of_groups = names_of(net, optimizer.param_groups(net, optim))
    without = {name for (decay, _), names in of_groups.items() if decay == 0 for name in names}
    return {name for name in without if net.get_parameter(name).dim() > 1}


# Tokens and position embeddings; a table of position biases; a network that computes them; a pattern; a convolution.
TIMM = (
    *(
        "timm/test_vit",
        "timm/deit_tiny_distilled_patch16_224",
        "timm/beit_base_patch16_224",
        "timm/swin_tiny_patch4_window7_224",
    ),
    *("timm/swinv2_tiny_window8_256", "timm/xcit_nano_12_p16_224", "timm/twins_svt_small", "timm/mvitv2_tiny"),
    *(
        "timm/levit_128s",
        "timm/test_convnext",
        "timm/test_resnet",
        "timm/edgenext_xx_small",
        "timm/maxvit_rmlp_pico_rw_256",
    ),
)


@pytest.mark.parametrize("name", TIMM)
def test_the_weights_that_decay_are_those_of_timm(name: str) -> None:
    with torch.device("meta"):
        net = timm.create_model(name.removeprefix("timm/"), num_classes=3)
    skipped = net.no_weight_decay() if hasattr(net, "no_weight_decay") else ()
    theirs = param_groups_weight_decay(net, 0.1, no_weight_decay_list=skipped)
    assert names_of(net, optimizer.param_groups(net, WEIGHTS_ONLY)) == names_of(net, theirs)
    assert len(names_of(net, optimizer.param_groups(net, OptimConfig(weight_decay_on="all")))) == 1


@pytest.mark.parametrize("name", TIMM)
def test_the_layers_that_learn_slowly_are_those_of_timm(name: str) -> None:
    with torch.device("meta"):
        net = timm.create_model(name.removeprefix("timm/"), num_classes=3)
    skipped = net.no_weight_decay() if hasattr(net, "no_weight_decay") else ()
    theirs = param_groups_layer_decay(net, 0.1, no_weight_decay_list=skipped, layer_decay=0.5)
    ours = optimizer.param_groups(net, replace(WEIGHTS_ONLY, layer_decay=0.5))
    assert names_of(net, ours) == names_of(net, theirs)


@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("vit_b_32", {"class_token", "encoder.pos_embedding"}),
        ("swin_t", {"relative_position_bias_table"}),
        ("swin_v2_t", {"logit_scale"}),
        ("maxvit_t", {"relative_position_bias_table"}),
        ("convnext_tiny", {"layer_scale"}),
        ("video.mvit_v2_s", {"rel_pos_h", "rel_pos_w", "rel_pos_t"}),
        ("video.mvit_v1_b", {"spatial_pos", "temporal_pos"}),
        ("resnet18", set()),
    ],
)
@pytest.mark.parametrize("layer_decay", [None, 0.75])
def test_tokens_positions_and_scales_of_torchvision_do_not_decay(
    name: str, without: set[str], layer_decay: float | None
) -> None:
    with torch.device("meta"):
        net = attrgetter(name)(torchvision.models)(weights=None)
    ours = undecayed(net, replace(WEIGHTS_ONLY, layer_decay=layer_decay))
    ends = {name if name in without else name.rpartition(".")[2] for name in ours}
    assert ends == without
    weights = {f"{path}.weight" for path, module in net.named_modules() if isinstance(module, nn.Linear)}
    assert not weights & ours


def test_what_a_network_of_the_user_or_a_part_of_it_names_does_not_decay() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Parameter(torch.zeros(1, 4))
            self.backbone = timm.create_model("test_vit", num_classes=3)

    class Naming(Own):
        def no_weight_decay(self) -> set[str]:
            return {"query", "backbone.blocks.0.*"}

    assert undecayed(Own()) == {"backbone.cls_token", "backbone.pos_embed", "backbone.reg_token"} & {
        name for name, _ in Own().named_parameters()
    }
    assert "query" in undecayed(Naming())
    assert "backbone.blocks.0.attn.qkv.weight" in undecayed(Naming())
    assert "backbone.cls_token" not in undecayed(Naming())


def test_a_list_of_the_user_that_fails_is_refused() -> None:
    class Broken(nn.Linear):
        def no_weight_decay(self) -> set[str]:
            raise ValueError("no list")

    with pytest.raises(Failure, match=r"no_weight_decay\(\) failed") as caught:
        optimizer.param_groups(Broken(2, 2), WEIGHTS_ONLY)
    assert caught.value.code == 64
