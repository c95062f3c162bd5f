"""Networks are built by name and fitted to the data, ours and every classification model of torchvision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from entrypoint import Failure
from train.config.models import BUILTIN_MODELS
from train.config.schema import TORCHVISION_MODELS, ModelConfig
from train.data.shape import Shape
from train.models import custom, registry

CLIP_MODELS = [name for name, entry in BUILTIN_MODELS.items() if entry.dims == 3]
SOME = (*BUILTIN_MODELS, "resnet18", "squeezenet1_1")


def build(
    name: str = "small_cnn",
    *,
    size: int | tuple[int, ...] = 32,
    channels: int = 3,
    classes: int = 10,
    seed: int = 0,
    **args: Any,
) -> nn.Module:
    sides = (size, size) if isinstance(size, int) else size
    sides = (4, *sides) if name in CLIP_MODELS and len(sides) == 2 else sides
    shape = Shape(channels=channels, size=sides)
    return registry.build_model(ModelConfig(name=name, args=args), classes=classes, shape=shape, seed=seed)


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("size", [32, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_model_takes_its_samples_and_gives_one_score_per_class(name: str, size: int, channels: int) -> None:
    frames = (4,) if name in CLIP_MODELS else ()
    with torch.no_grad():
        scores = build(name, size=size, channels=channels, classes=7)(torch.zeros(2, channels, *frames, size, size))
    assert scores.shape == (2, 7)


@pytest.mark.parametrize("name", SOME)
def test_first_weights_depend_on_the_seed_alone(name: str) -> None:
    torch.manual_seed(99)
    first = build(name, seed=5).state_dict()
    torch.manual_seed(1)
    second = build(name, seed=5).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_another_seed_gives_other_weights() -> None:
    first, second = (next(build(seed=seed).parameters()) for seed in (0, 1))
    assert not torch.equal(first, second)


def test_trying_a_network_leaves_its_buffers_alone() -> None:
    assert all(norm.num_batches_tracked == 0 for norm in build("resnet18").modules() if hasattr(norm, "running_mean"))


@pytest.mark.parametrize(
    ("name", "layout"), [("resnet18", torch.channels_last), ("cnn3d", torch.channels_last_3d)], ids=str
)
def test_channels_are_last_in_memory(name: str, layout: torch.memory_format) -> None:
    weights = [p for p in build(name).parameters() if p.dim() > 3]
    assert all(weight.is_contiguous(memory_format=layout) for weight in weights)


def test_parameters_are_counted() -> None:
    assert registry.count_parameters(nn.Linear(3, 4)) == 16


@pytest.mark.parametrize(
    ("name", "args", "named"),
    [
        ("small_cnn", {"widht": 8}, "widht"),
        ("small_cnn", {"norm": "layer"}, "layer"),
        ("small_cnn", {"width": -1}, "width"),
        ("small_cnn", {"width": 1.5}, "width"),
        ("small_cnn", {"width": 10**30}, "model.args"),
        ("small_cnn", {"blocks": -1}, "blocks"),
        ("small_cnn", {"dropout": 2}, "dropout"),
        ("small_cnn", {"dropout": "some"}, "dropout"),
        ("small_cnn", {"classes": 3}, "classes"),
        ("small_cnn", {"norm": ["batch"]}, "unhashable"),
        ("wide_resnet", {"width": 0}, "width"),
        ("wide_resnet", {"depth": "deep"}, "depth"),
        ("cnn3d", {"frames": 8}, "frames"),
        ("resnet18", {"depth": 50}, "depth"),
        ("squeezenet1_1", {"small_stem": True}, "small_stem"),
        ("alexnet", {"dropout": -1}, "dropout"),
        ("alexnet", {"classes": 3}, "classes"),
    ],
    ids=lambda value: str(value),
)
def test_arguments_that_do_not_fit_are_refused(name: str, args: dict[str, Any], named: str) -> None:
    shape = Shape(channels=3, size=(4, 32, 32) if name in CLIP_MODELS else (32, 32))
    with pytest.raises(Failure, match=f"model.args do not fit {name}") as caught:
        registry.build_model(ModelConfig(name=name, args=args), classes=10, shape=shape, seed=0)
    assert caught.value.code == 64
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("name", "wrong", "right"), [("small_cnn", "widht", "width"), ("resnet18", "norm_lyer", "norm_layer")]
)
def test_a_misspelled_argument_is_answered_with_the_nearest_one(name: str, wrong: str, right: str) -> None:
    model = ModelConfig(name=name, args={wrong: 4})
    with pytest.raises(Failure, match=f"model.args do not fit {name}") as caught:
        registry.build_model(model, classes=10, shape=Shape(channels=3, size=(32, 32)), seed=0)
    assert caught.value.fix == f"write model.args.{right} instead of model.args.{wrong}"


@pytest.mark.parametrize(
    ("name", "size", "enough"),
    [
        ("small_cnn", (4, 4), "8 pixels are enough"),
        ("wide_resnet", (3, 3), "8 pixels are enough"),
        ("alexnet", (32, 32), "64 pixels are enough"),
        ("inception_v3", (64, 64), "80 pixels are enough"),
        ("maxvit_t", (32, 32), "224 pixels are enough"),
        ("vit_b_32", (40, 40), "64 pixels are enough"),
        ("vit_b_16", (32, 48), "take another"),
    ],
    ids=str,
)
def test_samples_that_are_too_small_are_refused_with_a_size_that_is_not(
    name: str, size: tuple[int, int], enough: str
) -> None:
    with pytest.raises(Failure, match=f"{name} does not take samples of {size[0]} x {size[1]} x 3") as caught:
        build(name, size=size)
    assert caught.value.code == 64
    assert enough in caught.value.fix


@pytest.mark.parametrize("name", [name for name in SOME if name not in CLIP_MODELS])
def test_clips_for_a_network_of_images_are_refused(name: str) -> None:
    with pytest.raises(Failure, match=f"{name} takes images, and the data has clips") as caught:
        build(name, size=(8, 32, 32))
    assert (caught.value.code, caught.value.found) == (64, "samples of 8 x 32 x 32 x 3")


def test_images_for_a_network_of_clips_are_refused() -> None:
    with pytest.raises(Failure, match="cnn3d takes clips, and the data has images"):
        registry.build_model(ModelConfig(name="cnn3d"), classes=2, shape=Shape(channels=3, size=(8, 8)), seed=0)


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


def build_torchvision(name: str, size: int = 224, channels: int = 3, **args: Any) -> Any:
    return registry.build_torchvision_model(name, classes=7, shape=Shape(channels=channels, size=(size, size)), **args)


@pytest.mark.slow
@pytest.mark.usefixtures("weightless")
@pytest.mark.parametrize("name", TORCHVISION_MODELS)
def test_every_model_takes_images_and_gives_one_score_per_class(name: str) -> None:
    assert custom.forward_error(build_torchvision(name), Shape(channels=3, size=(224, 224)), 7) is None


@pytest.mark.usefixtures("weightless")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in ONE_OF_EACH]
)
def test_every_kind_of_model_takes_other_channels(name: str) -> None:
    assert custom.forward_error(build_torchvision(name, channels=1), Shape(channels=1, size=(224, 224)), 7) is None


@pytest.mark.parametrize("name", ["resnet18", "squeezenet1_1"])
@pytest.mark.parametrize("channels", [1, 4])
def test_other_channels_are_computed_with(name: str, channels: int) -> None:
    model = build_torchvision(name, 64, channels)
    assert model(torch.randn(2, channels, 64, 64)).shape == (2, 7)
    assert model.training


def test_new_channels_begin_with_the_weights_of_old_ones() -> None:
    torch.manual_seed(1)
    old = registry.first_convolution(build_torchvision("squeezenet1_1"))
    torch.manual_seed(1)
    new = registry.first_convolution(build_torchvision("squeezenet1_1", channels=5))
    assert torch.equal(new.weight, old.weight[:, [0, 1, 2, 0, 1]])


@pytest.mark.usefixtures("weightless")
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in RESNETS])
@pytest.mark.parametrize(
    ("size", "small_stem", "strides"), [(64, "auto", 1), (65, "auto", 2), (32, False, 2), (224, True, 1)]
)
def test_small_images_meet_a_resnet_without_strides_in_its_stem(
    name: str, size: int, small_stem: Any, strides: int
) -> None:
    model = build_torchvision(name, size, small_stem=small_stem)
    assert model.conv1.stride == (strides, strides)
    assert isinstance(model.maxpool, nn.Identity) == (strides == 1)


@pytest.mark.usefixtures("weightless")
def test_a_vision_transformer_is_built_for_the_images_size() -> None:
    assert build_torchvision("vit_b_16", 48).image_size == 48


@pytest.mark.usefixtures("weightless")
@pytest.mark.parametrize("name", ["inception_v3", "googlenet"])
def test_auxiliary_outputs_are_left_out(name: str) -> None:
    assert not [parameter for parameter, _ in build_torchvision(name).named_parameters() if "aux" in parameter.lower()]


@pytest.mark.usefixtures("weightless")
def test_extra_arguments_reach_the_constructor() -> None:
    assert build_torchvision("densenet121", drop_rate=0.25).features.denseblock1.denselayer1.drop_rate == 0.25


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
    assert caught.value.code == 64
    assert reason in caught.value.fix


@pytest.mark.usefixtures("weightless")
@pytest.mark.parametrize(
    ("name", "args", "problem"),
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
def test_arguments_that_do_not_fit_a_model_of_torchvision_are_refused(
    name: str, args: dict[str, Any], problem: str
) -> None:
    with pytest.raises((ValueError, TypeError, AssertionError), match=problem):
        custom.forward_error(build_torchvision(name, **args), Shape(channels=3, size=(224, 224)), 7)


def test_what_a_model_takes_is_known_without_building_it() -> None:
    assert {"small_stem", "zero_init_residual", "groups"} <= set(registry.torchvision_arguments("resnet50"))
    assert not {"block", "layers"} & set(registry.torchvision_arguments("resnet50"))
    assert "drop_rate" in registry.torchvision_arguments("densenet121")
    assert not {"num_classes", "weights", "small_stem"} & set(registry.torchvision_arguments("densenet121"))
