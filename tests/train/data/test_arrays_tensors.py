"""Plain tensors become one split of a data set, or are refused with the way to write them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import arrays
from train.data.arrays import ArraySource

BYTES = torch.uint8


def source(images: Tensor, labels: Tensor | None = None, *, first: bool = False) -> ArraySource:
    labels = torch.arange(len(images)) % 2 if labels is None else labels
    return arrays.checked_array_source(images, labels, "my.npz", channels_first=first)


def pixels(*shape: int, kind: torch.dtype = BYTES) -> Tensor:
    return torch.arange(torch.Size(shape).numel()).remainder(251).to(kind).view(shape)


def test_no_pixel_is_copied() -> None:
    images = pixels(6, 3, 8, 9)
    assert source(images, first=True).pixels.data_ptr() == images.data_ptr()


ONE = torch.zeros(6, dtype=torch.int64)
BAD_SIDES = {
    "lengths": (pixels(6, 4, 4), ONE[:5], "6 images, 5 labels", "write"),
    "no-samples": (pixels(0, 4, 4), ONE[:0], "images [0, 4, 4]", "write"),
    "no-pixels": (pixels(6, 4, 0), ONE, "images [6, 4, 0]", "write"),
    "int64-images": (pixels(6, 4, 4, kind=torch.int64), ONE, "int64 [6, 4, 4]", "save them as uint8"),
    "int8-images": (pixels(6, 4, 4, kind=torch.int8), ONE, "int8 [6, 4, 4]", "save them as uint8"),
    "bool-images": (pixels(6, 4, 4).bool(), ONE, "bool [6, 4, 4]", "save them as uint8"),
    "complex-images": (pixels(6, 4, 4).to(torch.complex64), ONE, "complex64", "save them as uint8"),
    "flat-images": (pixels(6, 16), ONE, "[6, 16]", "write"),
    "six-axes": (pixels(6, 2, 2, 2, 2, 2), ONE, "[6, 2, 2, 2, 2, 2]", "write"),
    "channels-first": (pixels(6, 3, 8, 8), ONE, "seem to be first", "(0, 2, 3, 1); clips of 3 frames"),
    "one-hot": (pixels(6, 4, 4), torch.eye(6), "labels [6, 6]", "argmax(1)"),
    "many-axes": (pixels(6, 4, 4), ONE.view(6, 1, 1), "labels [6, 1, 1]", "one label for each"),
    "one-label": (pixels(6, 4, 4), torch.tensor(3), "labels []", "one label for each"),
    "float-labels": (pixels(6, 4, 4), ONE.float(), "float32 [6]", "astype('int64')"),
    "bool-labels": (pixels(6, 4, 4), ONE.bool(), "bool [6]", "astype('int64')"),
    "negative-label": (pixels(6, 4, 4), ONE - 1, "-1", "from 0"),
}


@pytest.mark.parametrize(("images", "labels", "found", "fix"), BAD_SIDES.values(), ids=BAD_SIDES)
def test_a_bad_side_is_refused_with_what_was_found(images: Tensor, labels: Tensor, found: str, fix: str) -> None:
    with pytest.raises(Failure) as caught:
        source(images, labels)
    assert caught.value.code == ExitCode.DATA
    assert f"my.npz: {found}" in str(caught.value.found) or found in str(caught.value.found)
    assert fix in caught.value.fix


def test_without_validation_a_share_of_every_class_is_split_off() -> None:
    labels = torch.tensor([0] * 20 + [1] * 10)
    found = arrays.build_splits(DataConfig(name="npz"), source(pixels(30, 4, 4), labels), None)
    assert torch.bincount(found.validation.labels).tolist() == [4, 2]
    assert (len(found.training.labels), found.classes, found.mirror) == (24, ("0", "1"), True)


def test_the_two_sides_of_a_split_share_no_sample() -> None:
    found = arrays.build_splits(DataConfig(name="npz"), source(pixels(30, 4, 4)), None)
    assert isinstance(found.training, ArraySource)
    assert isinstance(found.validation, ArraySource)
    assert sorted([*found.training.rows.tolist(), *found.validation.rows.tolist()]) == list(range(30))


def test_a_validation_split_is_taken_whole() -> None:
    found = arrays.build_splits(DataConfig(name="npz"), source(pixels(30, 4, 4)), source(pixels(7, 4, 4)))
    assert (len(found.training.labels), len(found.validation.labels)) == (30, 7)


def test_what_was_found_is_said() -> None:
    (note,) = arrays.build_splits(DataConfig(name="npz"), source(pixels(6, 5, 8, 8, kind=torch.float32)), None).notes
    assert note == "my.npz holds clips of 5 x 8 x 8 x 1, floats, which go to the model as they are"


def test_a_class_may_be_missing_where_the_config_counts_them() -> None:
    assert len(arrays.build_splits(DataConfig(name="npz", classes=5), source(pixels(6, 4, 4)), None).classes) == 5


def labelled(*labels: int, kind: torch.dtype = BYTES, size: int = 4) -> ArraySource:
    return source(pixels(len(labels), size, size, kind=kind), torch.tensor(labels))


BAD_SETS = {
    "from-one": ({}, labelled(1, 2, 3), None, "no label 0", "from 0"),
    "a-gap": ({}, labelled(0, 1, 4), None, "no label 2, 3", "data.classes to 5"),
    "one-class": ({}, labelled(0, 0, 0), None, "label 0 alone", "write"),
    "validation-only": ({}, labelled(0, 1), labelled(0, 2), "no label 2", "data.classes to 3"),
    "too-large": ({"classes": 3}, labelled(0, 1, 3), None, "label 3", "data.classes to 4"),
    "too-large-validation": ({"classes": 3}, labelled(0, 1), labelled(5), "label 5", "data.classes to 6"),
    "other-sizes": ({}, labelled(0, 1), labelled(0, 1, size=5), "4 x 4 x 1, bytes and 5 x 5 x 1", "write"),
    "other-types": ({}, labelled(0, 1), labelled(0, 1, kind=torch.float32), "bytes and 4 x 4", "write"),
    "other-axes": ({}, labelled(0, 1), source(pixels(2, 4, 4, 3)), "4 x 4 x 3", "write"),
    "a-claimed-size": ({"image_size": 8}, labelled(0, 1), None, "4 x 4 x 1", "leave data.image_size out"),
}


@pytest.mark.parametrize(("settings", "one", "other", "found", "fix"), BAD_SETS.values(), ids=BAD_SETS)
def test_sides_that_do_not_fit_are_refused(
    settings: dict[str, int], one: ArraySource, other: ArraySource | None, found: str, fix: str
) -> None:
    with pytest.raises(Failure) as caught:
        arrays.build_splits(DataConfig(name="npz", **settings), one, other)  # type: ignore[arg-type]
    assert caught.value.code == ExitCode.DATA
    assert found in str(caught.value.found)
    assert fix in caught.value.fix
