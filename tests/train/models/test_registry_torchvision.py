"""Every classification model of torchvision, fitted to the data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from entrypoint import Failure
from train.config.schema import TORCHVISION_MODELS, ModelConfig
from train.data.shape import Shape
from train.models import custom, registry

RESNETS = [name for name in TORCHVISION_MODELS if name.startswith(("resnet", "resnext", "wide_resnet"))]

# fmt: off
ONE_OF_EACH = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "inception_v3", "maxvit_t", "mnasnet0_5",
    "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf", "resnet18", "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t",
    "swin_v2_t", "vgg11_bn", "vit_b_32",
)
# fmt: on
QUICK = ("alexnet", "mobilenet_v2", "resnet18", "squeezenet1_1", "vit_b_32")


class Weightless(TorchFunctionMode):
    """Layers get their tensors on the meta device; what is computed with at construction stays real."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Weights come from torch.empty, and nothing else of a constructor does."""
        return func(*args, **((kwargs or {}) | ({"device": "meta"} if func is torch.empty else {})))


@pytest.fixture
def weightless() -> Iterator[None]:
    with Weightless():
        yield


def net(name: str, size: int = 224, channels: int = 3, **args: Any) -> Any:
    return registry.build_torchvision_model(name, classes=7, shape=Shape(channels=channels, size=(size, size)), **args)


@pytest.mark.slow
@pytest.mark.usefixtures("weightless")
@pytest.mark.parametrize("name", TORCHVISION_MODELS)
def test_every_model_takes_images_and_gives_one_score_per_class(name: str) -> None:
    assert custom.forward_error(net(name), Shape(channels=3, size=(224, 224)), 7) is None


@pytest.mark.usefixtures("weightless")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ONE_OF_EACH]
)
def test_every_kind_of_model_takes_other_channels(name: str) -> None:
    assert custom.forward_error(net(name, channels=1), Shape(channels=1, size=(224, 224)), 7) is None


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1"])
@pytest.mark.parametrize("channels", [1, 4])
def test_other_channels_are_computed_with(name: str, channels: int) -> None:
    model = net(name, 64, channels)
    assert model(torch.randn(2, channels, 64, 64)).shape == (2, 7)
    assert model.training


def test_new_channels_begin_with_the_weights_of_old_ones() -> None:
    torch.manual_seed(1)
    old = registry.first_convolution(net("squeezenet1_1"))
    torch.manual_seed(1)
    new = registry.first_convolution(net("squeezenet1_1", channels=5))
    assert torch.equal(new.weight, old.weight[:, [0, 1, 2, 0, 1]])


@pytest.mark.usefixtures("weightless")
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in RESNETS])
@pytest.mark.parametrize(
    ("size", "small_stem", "strides"), [(64, "auto", 1), (65, "auto", 2), (32, False, 2), (224, True, 1)]
)
def test_small_images_meet_a_resnet_without_strides_in_its_stem(
    name: str, size: int, small_stem: Any, strides: int
) -> None:
    model = net(name, size, small_stem=small_stem)
    assert model.conv1.stride == (strides, strides)
    assert isinstance(model.maxpool, nn.Identity) == (strides == 1)


@pytest.mark.usefixtures("weightless")
def test_a_vision_transformer_is_built_for_the_images_size() -> None:
    assert net("vit_b_16", 48).image_size == 48


@pytest.mark.usefixtures("weightless")
@pytest.mark.parametrize("name", ["inception_v3", "googlenet"])
def test_auxiliary_outputs_are_left_out(name: str) -> None:
    assert not [one for one, _ in net(name).named_parameters() if "aux" in one.lower()]


@pytest.mark.usefixtures("weightless")
def test_extra_arguments_reach_the_constructor() -> None:
    assert net("densenet121", drop_rate=0.25).features.denseblock1.denselayer1.drop_rate == 0.25


@pytest.mark.parametrize(
    ("name", "args", "reason"),
    [
        ("resnet18", {"weights": "DEFAULT"}, "nothing is downloaded"),
        ("resnet18", {"pretrained": True}, "nothing is downloaded"),
        ("resnet18", {"progress": False}, "nothing is downloaded"),
        ("resnet18", {"num_classes": 3}, "the data decides"),
        ("inception_v3", {"aux_logits": True}, "one output"),
    ],
    ids=str,
)
def test_what_the_data_or_the_config_decides_is_no_argument(name: str, args: dict[str, Any], reason: str) -> None:
    with pytest.raises(Failure, match="cannot set") as caught:
        registry.build_model(
            ModelConfig(name=name, args=args), classes=7, shape=Shape(channels=3, size=(32, 32)), seed=0
        )
    assert reason in caught.value.fix


@pytest.mark.usefixtures("weightless")
@pytest.mark.parametrize(
    ("name", "args", "said"),
    [
        ("resnet18", {"small_stem": "yes"}, "auto, true or false"),
        ("resnet18", {"small_stem": 1}, "auto, true or false"),
        ("resnet18", {"small_stem": None}, "auto, true or false"),
        ("vgg11", {"small_stem": True}, "small_stem is for resnet18 and its kind"),
        ("vgg11", {"small_stem": False}, "small_stem is for resnet18 and its kind"),
        ("vgg11", {"depth": 3}, "depth"),
        ("densenet121", {"drop_rate": 2}, "between 0 and 1"),
        ("vit_b_16", {"image_size": 100}, "divisible"),
    ],
    ids=str,
)
def test_arguments_that_do_not_fit_are_refused(name: str, args: dict[str, Any], said: str) -> None:
    with pytest.raises((ValueError, TypeError, AssertionError), match=said):
        custom.forward_error(net(name, **args), Shape(channels=3, size=(224, 224)), 7)


def test_what_a_model_takes_is_known_without_building_it() -> None:
    assert {"small_stem", "zero_init_residual", "groups"} <= set(registry.torchvision_arguments("resnet50"))
    assert not {"block", "layers"} & set(registry.torchvision_arguments("resnet50"))
    assert "drop_rate" in registry.torchvision_arguments("densenet121")
    assert not {"num_classes", "weights", "small_stem"} & set(registry.torchvision_arguments("densenet121"))
