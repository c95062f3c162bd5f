"""From an image file to pixels."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps

from entrypoint import Failure
from train.data import decode


def test_a_larger_image_is_scaled_and_its_middle_taken(tmp_path: Path) -> None:
    path = tmp_path / "wide.png"
    pixels = np.zeros((16, 48, 3), np.uint8)
    pixels[:, 16:32] = 200
    Image.fromarray(pixels).save(path)
    assert decode.decode_image(path, 8, 0).shape == (8, 8, 3)
    assert decode.decode_image(path, 8, 0)[4, 2:6].min() == 200


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_images_of_any_mode_become_rgb(tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("image.jpg" if mode == "CMYK" else "image.png")
    Image.new("RGB", (8, 8), (9, 9, 9)).convert(mode).save(path)
    assert decode.decode_image(path, 8, 0).shape == (8, 8, 3)


@pytest.mark.parametrize(
    ("content", "code"), [(b"", 65), (b"no image", 65), (None, 66)], ids=["empty", "text", "missing"]
)
def test_a_file_that_is_no_image_is_named_with_its_index(tmp_path: Path, content: bytes | None, code: int) -> None:
    path = tmp_path / "bad.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Failure, match="image 7 cannot be read") as caught:
        decode.decode_image(path, 8, 7)
    assert caught.value.code == code
    assert str(path) in str(caught.value)


SYSTEM = {
    errno.ENOENT: 66,
    errno.EACCES: 66,
    errno.EPERM: 66,
    errno.EIO: 74,
    errno.ESTALE: 74,
    errno.ETIMEDOUT: 74,
    errno.EMFILE: 71,
    errno.ENFILE: 71,
    errno.EINVAL: 65,  # a seek to where a damaged header points
}


@pytest.mark.parametrize(("number", "code"), SYSTEM.items(), ids=[errno.errorcode[number] for number in SYSTEM])
def test_what_the_system_could_not_do_is_not_a_broken_image(tmp_path: Path, number: int, code: int) -> None:
    failure = decode.unreadable_image_failure(tmp_path / "a.png", 7, OSError(number, os.strerror(number)))
    assert failure.code == code
    assert "a.png" in str(failure)


def test_an_empty_file_is_called_so_and_the_fix_can_be_typed(tmp_path: Path) -> None:
    (tmp_path / "cut.jpg").touch()
    with pytest.raises(Failure) as caught:
        decode.decode_image(tmp_path / "cut.jpg", 8, 0)
    assert caught.value.found == f"{tmp_path}/cut.jpg: an empty file"
    assert "data.max_bad_images=1" in caught.value.fix


def test_an_image_that_is_too_large_is_no_broken_one(tmp_path: Path) -> None:
    (tmp_path / "scene.pgm").write_bytes(b"P5 14000 14000 255\n")
    with pytest.raises(Failure) as caught:
        decode.decode_image(tmp_path / "scene.pgm", 8, 3)
    assert caught.value.found == f"{tmp_path}/scene.pgm: 196 megapixels, and at most 178 are read"
    assert caught.value.fix.startswith("cut it into tiles, or scale it down")


def test_a_truncated_image_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.jpg"
    Image.effect_noise((64, 64), 90).convert("RGB").save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(Failure, match="truncated"):
        decode.decode_image(path, 64, 0)


DEEP = np.array([[0, 255, 256, 0x8000], [0xFFFF, 0x1234, 128, 0xFF00]])


@pytest.mark.parametrize("name", ["a.png", "a.tif", "a.pgm"])
def test_of_16_bits_the_upper_8_are_taken(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    Image.fromarray(np.kron(DEEP, np.ones((2, 1))).astype(np.uint16)).save(path)
    assert (decode.decode_image(path, 4, 0)[::2, :, 0] == DEEP >> 8).all()


@pytest.mark.parametrize(
    "pixels",
    [np.full((8, 8), 0.5, np.float32), np.full((8, 8), 70_000, np.int32), np.full((8, 8), -1, np.int32)],
    ids=["float", "large", "negative"],
)
def test_pixels_of_an_unknown_range_are_refused(tmp_path: Path, pixels: np.ndarray[tuple[int, int]]) -> None:
    Image.fromarray(pixels).save(tmp_path / "a.tif")
    with pytest.raises(Failure, match="32 bits") as caught:
        decode.decode_image(tmp_path / "a.tif", 8, 0)
    assert caught.value.code == 65


def sideways(path: Path, orientation: int, pixels: np.ndarray[tuple[int, ...]]) -> Path:
    """As a camera stores a picture: the pixels as they came, and how it was held."""
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    Image.fromarray(pixels).save(path, exif=exif)
    return path


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.tif"])
@pytest.mark.parametrize("orientation", range(10))
def test_a_sideways_picture_is_decoded_as_its_upright_copy(tmp_path: Path, orientation: int, name: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (12, 21, 3), np.uint8)
    path = sideways(tmp_path / name, orientation, noise)
    with Image.open(path) as image:
        ImageOps.exif_transpose(image).save(tmp_path / "upright.bmp")
    assert (decode.decode_image(path, 8, 0) == decode.decode_image(tmp_path / "upright.bmp", 8, 0)).all()


def test_a_large_sideways_picture_is_upright_too(tmp_path: Path) -> None:
    pixels = np.zeros((96, 160), np.uint8)
    pixels[:, :80] = 255  # its left is the top of what the camera saw
    found = decode.decode_image(sideways(tmp_path / "a.jpg", 6, pixels), 8, 0)
    assert (found[:3].min() > 200, found[5:].max() < 50) == (True, True)


def test_16_bits_are_upright_too(tmp_path: Path) -> None:
    path = sideways(tmp_path / "a.png", 3, np.kron(DEEP, np.ones((2, 1))).astype(np.uint16))
    assert (decode.decode_image(path, 4, 0)[::2, :, 0] == (DEEP >> 8)[::-1, ::-1]).all()


HEAD, SIX = b"Exif\0\0II*\0\x08\0\0\0", b"\x12\x01\x03\0\x01\0\0\0\x06\0\0\0"
DAMAGED = {
    "empty": b"Exif\0\0",
    "no-tiff": b"Exif\0\0nothing of the kind",
    "cut": HEAD + b"\x02\0" + SIX[:7],
    "beyond-its-end": HEAD[:-4] + b"\xff\xff\xff\x7f",
    "no-number": HEAD + b"\x01\0\x12\x01\x02\0\x02\0\0\0x\0\0\0\0\0\0\0",
    "two-numbers": HEAD + b"\x01\0" + SIX[:4] + b"\x02\0\0\0\x06\0\x06\0\0\0\0\0",
}


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp"])
@pytest.mark.parametrize("block", DAMAGED.values(), ids=DAMAGED)
def test_damaged_tags_leave_an_image_as_it_is(tmp_path: Path, block: bytes, name: str) -> None:
    image = Image.effect_noise((20, 12), 90).convert("RGB")
    image.save(tmp_path / name, exif=block)
    image.save(tmp_path / f"without-{name}")
    assert (decode.decode_image(tmp_path / name, 8, 0) == decode.decode_image(tmp_path / f"without-{name}", 8, 0)).all()


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(Failure, match="no regular file") as caught:
        decode.decode_image(tmp_path / "a.png", 8, 3)
    assert caught.value.code == 65
