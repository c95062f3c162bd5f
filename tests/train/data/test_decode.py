"""An image file becomes pixels with one open and one read, whatever its depth, transparency and orientation."""

from __future__ import annotations

import errno
import json
import os
import shutil
import struct
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image, ImageOps

from entrypoint import ExitCode, Failure
from train.cli import data_check
from train.config.schema import DataConfig
from train.data import custom, decode, registry
from train.data.preprocessing import Preprocessing
from train.data.shards import index as shard_index
from train.data.shards import packing


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
    decoded = decode.decode_image(sideways(tmp_path / "a.jpg", 6, pixels), 8, 0)
    assert (decoded[:3].min() > 200, decoded[5:].max() < 50) == (True, True)


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


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.jpg", quality=95)
    return tmp_path / "photo.jpg"


def box(height: int, width: int) -> tuple[int, int, int, int]:
    return 0, 0, height, width


def test_a_photo_that_is_cut_at_random_is_opened_once_and_read_at_once(
    photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, read, open_file = list[str](), os.read, os.open

    def count_read(handle: int, length: int) -> bytes:
        calls.append(f"read {length}")
        return read(handle, length)

    def count_open(path: Path, flags: int) -> int:
        calls.append("open")
        return open_file(path, flags)

    monkeypatch.setattr(decode.os, "read", count_read)
    monkeypatch.setattr(decode.os, "open", count_open)
    monkeypatch.setattr("builtins.open", lambda *_, **__: pytest.fail("opened again"))
    decode.decode_crop(photo, 32, 0, box)
    assert calls == ["open", f"read {photo.stat().st_size}"]


def test_a_file_that_is_read_in_parts_is_read_to_its_end(photo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = os.read
    monkeypatch.setattr(decode.os, "read", lambda handle, length: read(handle, min(length, 1000)))
    assert decode.read_image(photo).data == photo.read_bytes()


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "read",
    [lambda path: decode.decode_image(path, 8, 3), lambda path: decode.decode_crop(path, 32, 0, box)],
    ids=["image", "crop"],
)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, read: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    with pytest.raises(Failure, match="no regular file") as caught:
        read(tmp_path / "pipe.jpg")
    assert caught.value.code == 65


def test_a_file_that_is_gone_and_an_empty_one_are_said(tmp_path: Path) -> None:
    (tmp_path / "empty.jpg").touch()
    for name, reason in (("gone.jpg", "it is gone"), ("empty.jpg", "an empty file")):
        with pytest.raises(Failure, match=reason):
            decode.decode_crop(tmp_path / name, 32, 0, box)


GRAY = 128  # the mean of data.normalize: 0.5
DISC = np.hypot(*(np.mgrid[:16, :16] - 7.5)) < 5


def shape_in_alpha(path: Path, hidden: int = 0, shape: np.ndarray[tuple[int, int]] = DISC) -> Path:
    """A black shape of which only the alpha channel tells; what it hides has the value `hidden`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((16, 16, 4), 255, np.uint8) * shape[..., None]
    pixels[..., :3] = np.where(shape, 0, hidden)[..., None]
    Image.fromarray(pixels).save(path)
    return path


def png(pixels: np.ndarray[Any], depth: int, color: int, transparent: tuple[int, ...]) -> bytes:
    """A PNG with a transparent colour, as libpng writes it. color: 0 for gray, 2 for RGB."""
    rows = [format(int(value), f"0{depth}b") for value in pixels.ravel()]
    width = len(rows) // 16
    packed = b"".join(
        b"\0" + int(bits, 2).to_bytes(len(bits) // 8, "big")
        for bits in ("".join(rows[row * width : (row + 1) * width]) for row in range(16))
    )
    header = struct.pack(">IIBBBBB", 16, 16, depth, color, 0, 0, 0)
    chunks = {b"IHDR": header, b"tRNS": struct.pack(f">{len(transparent)}H", *transparent)}
    chunks |= {b"IDAT": zlib.compress(packed), b"IEND": b""}
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks.items()
    )


def two_colors(path: Path, mode: str) -> Path:
    """A black disc on nothing, in any of the ways in which files say it."""
    if mode.startswith("tRNS"):
        depth = int(mode.split()[-1])
        top = 2**depth - 1
        color, transparent = (2, (top - 1, 0, top)) if "RGB" in mode else (0, (top,))
        values = np.where(DISC[..., None], [0] * len(transparent), transparent)
        path.write_bytes(png(values, depth, color, transparent))
        return path
    with Image.open(shape_in_alpha(path.with_suffix(".png"), hidden=200)) as image:
        image.convert(mode).save(path, lossless=True)
    return path


FORMS = {
    "RGBA": ("RGBA", "a.png"),
    "gray and alpha": ("LA", "a.png"),
    "a palette": ("P", "a.png"),
    "WebP": ("RGBA", "a.webp"),
    "GIF": ("RGBA", "a.gif"),
    "TIFF": ("RGBA", "a.tif"),
    "TIFF of gray and alpha": ("LA", "a.tif"),
    **{f"tRNS {depth}": (f"tRNS {depth}", "a.png") for depth in (1, 2, 4, 8, 16)},
    **{f"tRNS RGB {depth}": (f"tRNS RGB {depth}", "a.png") for depth in (8, 16)},
}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("mode", "name"), FORMS.values(), ids=FORMS)
def test_a_shape_in_the_alpha_channel_is_seen_on_the_fill_colour(
    tmp_path: Path, mode: str, name: str, channels: int
) -> None:
    read = decode.decode_image(two_colors(tmp_path / name, mode), 16, 0, channels=channels)
    assert (read == np.where(DISC, 0, GRAY)[..., None]).all()


def test_files_that_look_the_same_are_the_same_input(tmp_path: Path) -> None:
    first, second = (shape_in_alpha(tmp_path / f"{hidden}.png", hidden=hidden) for hidden in (0, 255))
    Image.fromarray(np.where(DISC, 0, GRAY).astype(np.uint8)).save(tmp_path / "opaque.png")
    looks = [decode.decode_image(path, 8, 0) for path in (first, second, tmp_path / "opaque.png")]
    assert (looks[0] == looks[1]).all()
    assert (looks[0] == looks[2]).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_an_opaque_image_keeps_its_bits(tmp_path: Path, mode: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (21, 12, 3), np.uint8))
    noise = noise.convert("L") if mode == "LA" else noise.quantize(32) if mode == "P" else noise
    noise.convert(mode).save(tmp_path / "alpha.png", **({"transparency": b"\xff" * 32} if mode == "P" else {}))
    noise.convert("RGB").save(tmp_path / "plain.png")
    alpha, plain = (decode.decode_image(tmp_path / name, 8, 0) for name in ("alpha.png", "plain.png"))
    assert (alpha == plain).all()


def test_half_transparent_pixels_are_mixed_with_the_mean_of_the_normalization(tmp_path: Path) -> None:
    Image.new("RGBA", (8, 8), (255, 0, 0, 51)).save(tmp_path / "a.png")
    mean = Preprocessing(mean=(0.2, 0.4, 0.6), std=(1.0, 1.0, 1.0))
    read = decode.decode_image(tmp_path / "a.png", 8, 0, mean)
    assert read[0, 0].tolist() == [51 + round(0.2 * 204), round(0.4 * 204), round(0.6 * 204)]


def shapes(root: Path) -> DataConfig:
    """Class folders of discs and squares that only the alpha channel tells apart."""
    square = np.zeros((16, 16), bool)
    square[3:13, 3:13] = True
    for number in range(4):
        shape_in_alpha(root / "disc" / f"{number}.png")
        shape_in_alpha(root / "square" / f"{number}.png", shape=square)
    return DataConfig(name="folder", root=str(root), image_size=16)


def seen(data: DataConfig) -> list[np.ndarray[Any]]:
    """A training image of each class."""
    training = registry.open_splits(data).training
    labels = training.labels.tolist()
    return [training.read(np.array([labels.index(label)]))[0, ..., 0].numpy() for label in (0, 1)]


def test_a_training_sees_the_shapes_of_folders_and_of_shards(tmp_path: Path) -> None:
    data = shapes(tmp_path / "icons")
    disc, square = seen(data)
    assert (disc == np.where(DISC, 0, GRAY)).all()
    assert square[3:13, 3:13].max() == 0
    assert square[0].min() == GRAY
    for scaling in (None, packing.Scaling(size=12, quality=90)):
        output = tmp_path / f"shards-{scaling is None}"
        packing.pack_images(data, output, scaling=scaling, say=lambda _: None)
        packed = seen(replace(data, name="shards", root=str(output)))
        assert [image[0].min() for image in packed] == [GRAY, GRAY]
        assert [image[8, 8] for image in packed] == [0, 0]


def test_the_colour_behind_packed_images_is_that_of_the_training(tmp_path: Path) -> None:
    data = shapes(tmp_path / "icons")
    packing.pack_images(data, tmp_path / "shards", scaling=packing.Scaling(size=12, quality=90), say=lambda _: None)
    white = {"mean": [1.0], "std": [1.0]}
    packed = seen(replace(data, name="shards", root=str(tmp_path / "shards"), normalize=white))
    assert [image[0].min() for image in packed] == [255, 255]


def test_a_crop_and_a_picture_of_ones_own_show_the_same(tmp_path: Path) -> None:
    path = shape_in_alpha(tmp_path / "a.png", hidden=255)
    cropped = decode.decode_crop(path, 16, 0, lambda height, width: (0, 0, height, width))
    own = custom.open_dataset_source([(Image.open(path), 0)] * 2, torch.zeros(2, dtype=torch.int64), 16, "own:make")
    expected = np.where(DISC, 0, GRAY)
    assert (cropped[..., 0] == expected).all()
    assert (own.read(np.arange(1))[0, ..., 0].numpy() == expected).all()


def test_a_picture_that_ones_own_code_made_rgb_keeps_its_colours(tmp_path: Path) -> None:
    with Image.open(two_colors(tmp_path / "a.gif", "RGBA")) as image:
        converted = image.convert("RGB")
    assert "transparency" in converted.info
    own = custom.open_dataset_source([(converted, 0)], torch.zeros(1, dtype=torch.int64), 16, "own:make")
    assert (own.read(np.arange(1))[0].numpy() == np.asarray(converted)).all()


def test_the_data_check_compares_what_is_seen(tmp_path: Path) -> None:
    first, second = (shape_in_alpha(tmp_path / f"{hidden}.png", hidden=hidden) for hidden in (0, 255))
    assert data_check.inspect_file(first, 0).digest == data_check.inspect_file(second, 1).digest


def test_images_that_are_transparent_everywhere_are_refused(tmp_path: Path) -> None:
    data = shapes(tmp_path)
    for path in tmp_path.glob("*/*.png"):
        shape_in_alpha(path, hidden=7, shape=np.zeros((16, 16), bool))
    with pytest.raises(Failure, match="transparent everywhere") as caught:
        registry.open_splits(data)
    assert caught.value.code == 65


def test_pages_that_are_not_read_are_counted(tmp_path: Path) -> None:
    frames = [Image.fromarray(np.full((8, 8), value, np.uint8)) for value in (0, 100)]
    for number, name in enumerate(("a.gif", "b.tif", "c.webp", "d.png")):
        for label in ("cat", "dog"):
            (tmp_path / label).mkdir(exist_ok=True)
            frames[0].save(tmp_path / label / name, save_all=True, append_images=frames[1:] * (number < 4))
    data = DataConfig(name="folder", root=str(tmp_path), val_fraction=0.0)
    (warning,) = registry.open_splits(data).warnings
    assert warning.endswith(
        "8 of 8 images looked at hold several pages or frames, of which the first is read (GIF, PNG, TIFF, WEBP)"
    )
    facts = [data_check.inspect_file(path, 0).facts.format for path in sorted((tmp_path / "cat").iterdir())]
    assert facts == ["GIF", "TIFF", "WEBP", "PNG"]


def test_the_data_check_names_files_with_pages_and_without_a_visible_pixel(tmp_path: Path) -> None:
    shape_in_alpha(tmp_path / "a.png", shape=np.zeros((16, 16), bool))
    frames = [Image.new("L", (8, 8), value) for value in (0, 9)]
    frames[0].save(tmp_path / "b.tif", save_all=True, append_images=frames[1:])
    split = data_check.SplitFindings(name="training", name_of=["a.png", "b.tif"].__getitem__, label_of=lambda _: 0)
    for number, name in enumerate(("a.png", "b.tif")):
        split.add(data_check.inspect_file(tmp_path / name, number))
    validation = replace(split, name="validation")
    findings = data_check.DataFindings(title="t", splits=[split, validation], classes=[], per_class=({}, {}))
    assert "pages        1 hold several pages or frames, of which the first is read: b.tif" in findings.as_text()
    assert "transparent  1 are transparent everywhere, and read as one colour: a.png" in findings.as_text()
    training = json.loads(findings.as_json())["training"]
    assert (training["several_pages"], training["transparent_everywhere"]) == (["b.tif"], ["a.png"])


XMP = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


@pytest.mark.parametrize("name", ["a.jpg", "a.webp", "a.tif"])
def test_an_orientation_in_xmp_alone_turns_every_format(tmp_path: Path, name: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "plain.tif" if name == "a.tif" else tmp_path / f"plain-{name}", quality=100)
    extra: dict[str, Any] = {"tiffinfo": {700: XMP}} if name == "a.tif" else {"xmp": XMP, "quality": 100}
    Image.fromarray(noise).save(tmp_path / name, **extra)
    plain = decode.decode_image(tmp_path / ("plain.tif" if name == "a.tif" else f"plain-{name}"), 8, 0)
    assert (decode.decode_image(tmp_path / name, 8, 0) == np.rot90(plain, -1)).all()


def write_deep(folder: Path, *highest: int, name: str = "a.png", kind: type = np.uint16) -> list[Path]:
    """For each number an image whose pixels run from 0 to it."""
    paths = [folder / f"{number}-{name}" for number in range(len(highest))]
    for path, value in zip(paths, highest, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.linspace(0, value, 64).reshape(8, 8).astype(kind)).save(path)
    return paths


def highest_values(paths: list[Path]) -> list[int | None]:
    """Of the files that are looked at."""
    return [facts.highest for facts in decode.sample_facts(paths.__getitem__, len(paths))]


def depth_warnings(values: list[int | None]) -> tuple[str, ...]:
    """What is said of images with these highest values."""
    return decode.sample_warnings([decode.ImageFacts(highest=value) for value in values], "data.root d")


DEPTHS = {
    "png": ("a.png", np.uint16, 3071, 3071),
    "tiff": ("a.tif", np.uint16, 3071, 3071),
    "pgm": ("a.pgm", np.uint16, 3071, 3071),
    "tiff-of-32-bits": ("a.tif", np.int32, 255, 255),
    "full": ("a.png", np.uint16, 65535, 65535),
    "8-bits": ("a.png", np.uint8, 200, None),
    "floats": ("a.tif", np.float32, 200, None),
    "more-than-16-bits": ("a.tif", np.int32, 70_000, None),
}


@pytest.mark.parametrize(("name", "kind", "value", "expected"), DEPTHS.values(), ids=DEPTHS)
def test_the_highest_value_of_a_deep_image_is_read(
    tmp_path: Path, name: str, kind: type, value: int, expected: int | None
) -> None:
    assert highest_values(write_deep(tmp_path, value, name=name, kind=kind)) == [expected]


def test_a_few_files_of_many_are_looked_at_from_the_first_to_the_last(tmp_path: Path) -> None:
    highest = highest_values(write_deep(tmp_path, *range(300, 360)))
    assert (len(highest), highest[0], highest[-1]) == (decode.NUM_CHECKED_IMAGES, 300, 359)


def test_files_that_are_no_images_are_left_to_who_reads_them(tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes(b"no")
    assert highest_values([*write_deep(tmp_path, 300), tmp_path / "b.png", tmp_path / "gone.png"]) == [300]
    assert highest_values([]) == []


FULL_DEPTHS = {"full": [65535, 900], "13-bits": [4096], "8-bits": [None, None], "black": [0, 0], "none": []}


@pytest.mark.parametrize("values", FULL_DEPTHS.values(), ids=FULL_DEPTHS)
def test_of_images_that_use_their_bits_nothing_is_said(values: list[int | None]) -> None:
    assert depth_warnings(values) == ()


def test_images_of_12_bits_are_warned_of() -> None:
    (warning,) = depth_warnings([3000, None, 4095, 12])
    assert warning == (
        "data.root d: 3 images of 16 bits looked at, no value above 4,095 of 65,535: of 16 bits the upper 8 are read, "
        "16 gray levels are left. fix: multiply them by 16 and save them again"
    )


def test_images_that_would_all_be_black_are_refused() -> None:
    with pytest.raises(Failure, match="would all be read as black") as caught:
        depth_warnings([255, 200])
    assert (caught.value.code, caught.value.fix) == (ExitCode.DATA, "save them again with 8 bits")


@pytest.mark.parametrize("others", [None, 0])
def test_a_dark_image_among_others_is_not_refused(others: int | None) -> None:
    (warning,) = depth_warnings([255, others])
    assert "nothing but black is left. fix: save them again with 8 bits" in warning


@pytest.mark.parametrize(("name", "kind"), [("a.png", np.uint16), ("a.tif", np.int32)])
def test_a_folder_of_such_images_is_not_trained_on(tmp_path: Path, name: str, kind: type) -> None:
    for label in ("cat", "dog"):
        write_deep(tmp_path / label, *[255] * 5, name=name, kind=kind)
    with pytest.raises(Failure, match="would all be read as black"):
        registry.open_splits(DataConfig(name="folder", root=str(tmp_path)))


def test_a_folder_of_12_bits_is_warned_of_at_the_start(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        write_deep(tmp_path / label, *[4095] * 5)
    (warning,) = registry.open_splits(DataConfig(name="folder", root=str(tmp_path))).warnings
    assert warning.startswith(f"data.root {tmp_path}: 8 images of 16 bits looked at")


# Files of 16 bits in colour whose values end at 191: written by tifffile, by libpng (imagecodecs) and by netpbm.
DEEP_FILES = sorted((Path(__file__).parents[2] / "data" / "deep").iterdir())
MANY = ("netpbm.ppm", "tifffile-planes-zlib.tif")  # of which Pillow does not tell the lower bytes


@pytest.mark.parametrize("file", DEEP_FILES, ids=[file.name for file in DEEP_FILES])
def test_colours_of_16_bits_that_would_be_black_are_refused_in_folders_and_shards(tmp_path: Path, file: Path) -> None:
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for number in range(4):
            shutil.copy(file, tmp_path / label / f"{number}{file.suffix}")
    (facts,) = decode.sample_facts(lambda _: file, 1)
    assert facts.highest == (255 if file.name in MANY else 189 if "gray" in file.name else 191)
    with pytest.raises(Failure, match="would all be read as black") as caught:
        registry.open_splits(DataConfig(name="folder", root=str(tmp_path)))
    assert caught.value.code == ExitCode.DATA
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number, path in enumerate(sorted(tmp_path.glob("*/*"))):
            archive.add(path, f"{number}{path.suffix}")
            (tmp_path / "a.cls").write_text(str(number % 2))
            archive.add(tmp_path / "a.cls", f"{number}.cls")
    shard_index.write_index(tmp_path)
    with pytest.raises(Failure, match="would all be read as black"):
        registry.open_splits(DataConfig(name="shards", root=str(tmp_path)))


def test_planes_of_16_bits_are_read_as_their_upper_8() -> None:
    """Pillow takes each byte of such a TIFF for a pixel."""
    content = bytearray((DEEP_FILES[0].parent / "tifffile-planes.tif").read_bytes())
    planes = np.arange(192, dtype=np.uint16).reshape(8, 8, 3) * 300
    start = content.index(np.arange(0, 192, 3, dtype="<u2").tobytes())
    content[start : start + 384] = np.moveaxis(planes, -1, 0).astype("<u2").tobytes()
    assert (decode.decode_image(decode.ImageBytes("a.tif", bytes(content)), 8, 0) == planes >> 8).all()


def test_a_black_image_among_dark_ones_does_not_hide_them() -> None:
    with pytest.raises(Failure, match="would all be read as black"):
        depth_warnings([0, 10, 20, 40, 250, 250, 250, 250])


def test_black_shapes_in_an_alpha_channel_of_16_bits_are_no_dark_images() -> None:
    facts = [decode.ImageFacts(highest=0)] * 8
    assert decode.sample_warnings(facts, "icons") == ()


OWN_DARK_FILES = """
import torch
from train.data.shape import Shape
from train.data.splits import DataSplits, ImageFileSource

def make(data):
    files = [f"{data.root}/{number}-a.png" for number in range(4)]
    source = ImageFileSource(files, torch.arange(4) % 2, 8)
    return DataSplits(training=source, validation=source, classes=("a", "b"), shape=Shape(channels=3, size=(8, 8)))
"""


def test_the_files_of_a_data_set_of_ones_own_are_looked_at_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_dark_files.py").write_text(OWN_DARK_FILES)
    monkeypatch.syspath_prepend(tmp_path)
    write_deep(tmp_path, 255, 255, 255, 255)
    with pytest.raises(Failure, match="own_dark_files:make holds images of 16 bits that would all be read as black"):
        registry.open_splits(DataConfig(name="own_dark_files:make", root=str(tmp_path), image_size=8))
