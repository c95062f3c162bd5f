"""Images and clips are told apart by what the config says."""

from __future__ import annotations

import pytest

from entrypoint import Failure
from train.settings import kinds, names
from train.settings.config import Data


@pytest.mark.parametrize(
    ("data", "dims"),
    [
        (Data(), 2),
        (Data(frames=8), 3),
        (Data(name="folder"), 2),
        (Data(name="cifar10"), 2),
        (Data(name="npz"), None),
        (Data(name="tensor"), None),
        (Data(name="my.data:make"), None),
    ],
    ids=str,
)
def test_the_name_tells_where_it_can(data: Data, dims: int | None) -> None:
    assert kinds.dimensions(data) == dims


@pytest.mark.parametrize(("model", "dims"), [("cnn3d", 3), ("small_cnn", 2), ("cnn3d", None), ("a.b:c", 3), ("a:b", 2)])
def test_a_match_passes(model: str, dims: int | None) -> None:
    kinds.refuse_mismatch(model, dims, "")


@pytest.mark.parametrize("model", [name for name in names.MODELS if name != "cnn3d"])
def test_no_other_model_takes_clips(model: str) -> None:
    with pytest.raises(Failure, match=f"{model} takes images, and the data has clips") as caught:
        kinds.refuse_mismatch(model, 3, "data.name: synthetic")
    assert (caught.value.code, caught.value.found) == (64, "data.name: synthetic")


@pytest.mark.parametrize(("dims", "has"), [(2, "images"), (1, "neither")])
def test_a_model_of_clips_takes_nothing_else(dims: int, has: str) -> None:
    with pytest.raises(Failure, match=f"cnn3d takes clips, and the data has {has}"):
        kinds.refuse_mismatch("cnn3d", dims, "")
