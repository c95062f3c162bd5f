"""Items of the user's own datasets."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from entrypoint import ExitCode, Failure
from train.data import custom, decode

BYTES = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)


class Listed:
    """Items out of a list; what is callable in it is called."""

    def __init__(self, *images: Any) -> None:
        self.images = images

    def __getitem__(self, row: int) -> Any:
        image = self.images[row]
        return image() if callable(image) else image if isinstance(image, (tuple, str)) else (image, row % 2)


def opened(*images: Any, labels: list[int] | None = None) -> custom.DatasetSource:
    found = torch.arange(len(images)) % 2 if labels is None else torch.tensor(labels)
    return custom.open_dataset_source(Listed(*images), found, 6, "mine:make, training data:")


LIKE = {
    "an-array": (BYTES, (8, 8, 3), torch.uint8),
    "a-gray-array": (BYTES[..., 0], (8, 8, 1), torch.uint8),
    "a-clip": (np.stack([BYTES] * 5), (5, 8, 8, 3), torch.uint8),
    "a-gray-clip": (np.zeros((5, 8, 8), np.uint8), (5, 8, 8, 1), torch.uint8),
    "floats": (BYTES / 255, (8, 8, 3), torch.float32),
    "a-tensor": (torch.from_numpy(BYTES).permute(2, 0, 1), (8, 8, 3), torch.uint8),
    "half-precision": (torch.zeros(3, 8, 8).half(), (8, 8, 3), torch.float32),
    "a-clip-tensor": (torch.zeros(3, 5, 8, 8), (5, 8, 8, 3), torch.float32),
    "a-picture": (Image.fromarray(BYTES), (6, 6, 3), torch.uint8),
    "a-wide-gray-picture": (Image.new("L", (20, 8)), (6, 6, 3), torch.uint8),
}


@pytest.mark.parametrize(("image", "shape", "kind"), LIKE.values(), ids=LIKE)
def test_images_of_every_kind(image: Any, shape: tuple[int, ...], kind: torch.dtype) -> None:
    source = opened(image, image)
    assert source.first == (shape, kind)
    read = source.read(np.array([1, 0]))
    assert (read.shape, read.dtype, read.is_contiguous()) == ((2, *shape), kind, True)


@pytest.mark.parametrize("sides", [(21, 8), (8, 21), (40, 33), (6, 6)])
def test_a_picture_is_cut_and_scaled_as_a_file_is(sides: tuple[int, int], tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (*sides, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.jpg")
    read = opened(Image.open(tmp_path / "a.jpg").convert("RGB")).read(np.arange(1))[0]
    assert np.array_equal(read, decode.decode_image(tmp_path / "a.jpg", 6, 0, draft=False))


def test_pictures_are_known_from_arrays() -> None:
    assert [opened(one).holds_pictures for one in (Image.fromarray(BYTES), BYTES)] == [True, False]


def test_pixels_come_as_they_are() -> None:
    tensor = torch.from_numpy(BYTES).permute(2, 0, 1)
    assert opened(BYTES, tensor).read(np.arange(2)).equal(torch.from_numpy(np.stack([BYTES, BYTES])))


def test_of_a_picture_of_16_bits_the_upper_8_are_taken() -> None:
    deep = np.linspace(0, 0xFFFF, 36, dtype=np.uint16).reshape(6, 6)
    pictures = [Image.fromarray(deep), Image.fromarray(deep.astype(np.int32))]
    assert [picture.mode for picture in pictures] == ["I;16", "I"]
    assert (opened(*pictures).read(np.arange(2))[..., 0].numpy() == deep >> 8).all()


def test_the_highest_values_of_pictures_of_16_bits_are_told() -> None:
    pictures = [Image.fromarray(np.full((6, 6), value, np.uint16)) for value in (0, 255, 4095)]
    _, facts = custom.look_at_items(opened(*pictures, Image.new("L", (6, 6))))
    assert [each.highest for each in facts] == [0, 255, 4095, None]


def test_arrays_have_no_depth_to_be_told() -> None:
    assert custom.look_at_items(opened(BYTES, BYTES)) == (None, [])


def test_a_picture_that_was_taken_sideways_is_turned() -> None:
    picture = Image.fromarray(BYTES[:6, :6])
    picture.getexif()[ExifTags.Base.Orientation] = 6
    picture.info["exif"] = picture.getexif().tobytes()
    assert (opened(picture.copy()).read(np.arange(1))[0].numpy() == np.rot90(BYTES[:6, :6], -1)).all()


def test_a_part_reads_its_own_items() -> None:
    source = opened(*(np.full((4, 4), number, np.uint8) for number in range(6)))
    part = source.select(source.labels == 1)
    assert part.read(np.arange(3))[:, 0, 0, 0].tolist() == [1, 3, 5]


def test_no_items_keep_their_shape() -> None:
    assert opened(BYTES).read(np.arange(0)).shape == (0, 8, 8, 3)


@pytest.mark.parametrize("label", [1, True, np.int8(1), np.uint64(1), torch.tensor(1), torch.tensor([1])])
def test_labels_of_every_integer_kind(label: Any) -> None:
    assert custom.read_item(Listed((BYTES, label)), 0, "mine:")[1] == 1


def fails() -> Any:
    raise ValueError("no such file")


def with_nan() -> Any:
    return (np.where(BYTES == 9, np.nan, 1.0), 1)


BAD = {
    "an-error": (fails, f"{__file__}, line", "cannot be read"),
    "no-pair": ("abc", "str: too many", "is no pair"),
    "three-things": ((BYTES, 1, 2), "tuple: too many", "is no pair"),
    "a-dict": (dict, "dict: not enough", "is no pair"),
    "nothing": (lambda: None, "NoneType:", "is no pair"),
    "a-float-label": ((BYTES, 1.0), "1.0", "is a number with a decimal point"),
    "a-text-label": ((BYTES, "cat"), "'cat'", "is text"),
    "a-one-hot-label": ((BYTES, np.array([0, 1])), "ndarray of the shape", "is a vector"),
    "a-ragged-label": ((BYTES, [[0], [0, 1]]), "a list", "is no number"),
    "no-label": ((BYTES, None), "a NoneType", "is no number"),
    "another-size": ((BYTES[:4], 1), "[4, 8, 3], uint8", "not like the first"),
    "another-type": ((BYTES / 255, 1), "[8, 8, 3], float32", "not like the first"),
    "no-channels": ((BYTES[..., 0], 1), "[8, 8, 1], uint8", "not like the first"),
    "another-label": ((BYTES, 0), "label 0", "another label"),
    "text": (("a.jpg", 1), "a str", "no image"),
    "a-list": (([[1, 2]], 1), "a list", "no image"),
    "integers": ((BYTES.astype(np.int64), 1), "int64", "no image"),
    "objects": ((np.array([None]), 1), "an array of object", "no image"),
    "a-picture-of-floats": ((Image.new("F", (8, 8), 0.5), 1), "32 bits (mode F)", "no image"),
    "a-picture-of-few-numbers": ((Image.new("I", (8, 8), 255), 1), "mode I", "no image"),
    "one-axis": ((BYTES[0, 0], 1), "[1, 3]", "these axes"),
    "channels-first": ((BYTES.transpose(2, 0, 1), 1), "[1, 3, 8, 8]", "another place"),
}


@pytest.mark.parametrize(("second", "found", "what"), BAD.values(), ids=BAD)
def test_a_bad_item_is_refused_by_its_number(second: Any, found: str, what: str) -> None:
    source = opened(BYTES, second)
    with pytest.raises(Failure, match=what) as caught:
        source.read(np.arange(2))
    assert caught.value.code == ExitCode.DATA
    assert found in str(caught.value.found)
    assert "item 1" in str(caught.value)


def test_a_picture_that_is_broken_where_it_is_read_late_is_named() -> None:
    Image.effect_noise((64, 64), 90).save(whole := io.BytesIO(), "JPEG")
    cut = whole.getvalue()[:900]
    with pytest.raises(Failure, match="item 1 is no image") as caught:
        opened(BYTES, lambda: (Image.open(io.BytesIO(cut)), 1)).read(np.arange(2))
    assert "truncated" in str(caught.value.found)


def test_a_lost_disk_is_not_a_wrong_item(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> Image.Image:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(custom.decode, "to_8_bits", lost)
    with pytest.raises(OSError, match="error"):
        opened(Image.new("L", (8, 8)))


def test_numbers_that_are_not_finite_are_refused() -> None:
    source = opened(BYTES / 255, with_nan)
    with pytest.raises(Failure, match="item 1 holds numbers that are not finite"):
        source.read(np.arange(2))


@pytest.mark.parametrize("error", [MemoryError(), Failure("mine", fix="so", code=ExitCode.IO)])
def test_what_the_dataset_says_itself_passes(error: Exception) -> None:
    def stand_in() -> Any:
        raise error

    with pytest.raises(type(error)) as caught:
        opened(stand_in)
    assert caught.value is error
