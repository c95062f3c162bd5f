"""Images and clips are told apart by what the config says."""

from __future__ import annotations

import pytest

from entrypoint import Failure
from train.config import checks, schema
from train.config.models import BUILTIN_MODELS
from train.config.schema import DataConfig
from train.data import registry

IMAGE_MODELS = (
    *(name for name, entry in BUILTIN_MODELS.items() if entry.dims == 2),
    *schema.TORCHVISION_MODELS,
)


@pytest.mark.parametrize(
    ("data", "dims"),
    [
        (DataConfig(), 2),
        (DataConfig(frames=8), 3),
        (DataConfig(name="folder"), 2),
        (DataConfig(name="cifar10"), 2),
        (DataConfig(name="npz"), None),
        (DataConfig(name="tensor"), None),
        (DataConfig(name="my.data:make"), None),
    ],
    ids=str,
)
def test_the_name_tells_where_it_can(data: DataConfig, dims: int | None) -> None:
    shape = registry.configured_shape(data)
    assert (None if shape is None else len(shape.size)) == dims


@pytest.mark.parametrize(("model", "dims"), [("cnn3d", 3), ("small_cnn", 2), ("cnn3d", None), ("a.b:c", 3), ("a:b", 2)])
def test_a_match_passes(model: str, dims: int | None) -> None:
    checks.refuse_dimension_mismatch(model, dims, "")


@pytest.mark.parametrize("model", IMAGE_MODELS)
def test_no_other_model_takes_clips(model: str) -> None:
    with pytest.raises(Failure, match=f"{model} takes images, and the data has clips") as caught:
        checks.refuse_dimension_mismatch(model, 3, "data.name: synthetic")
    assert (caught.value.code, caught.value.found) == (64, "data.name: synthetic")


@pytest.mark.parametrize(("dims", "has"), [(2, "images"), (1, "neither")])
def test_a_model_of_clips_takes_nothing_else(dims: int, has: str) -> None:
    with pytest.raises(Failure, match=f"cnn3d takes clips, and the data has {has}"):
        checks.refuse_dimension_mismatch("cnn3d", dims, "")
