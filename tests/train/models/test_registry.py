"""Networks by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from entrypoint import Failure
from train.config.models import BUILTIN_MODELS
from train.config.schema import ModelConfig
from train.data.shape import Shape
from train.models import registry

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


@pytest.mark.parametrize("args", [{"weights": "DEFAULT"}, {"progress": True}], ids=str)
def test_an_argument_that_would_fetch_weights_is_refused_before_a_model_is_built(args: dict[str, Any]) -> None:
    model = ModelConfig(name="resnet18", args=args)
    with pytest.raises(Failure, match=r"model\.args cannot set .* of resnet18") as caught:
        registry.build_model(model, classes=10, shape=Shape(channels=3, size=(32, 32)), seed=0)
    assert caught.value.code == 64


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
