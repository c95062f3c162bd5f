"""Transparent pixels show the colour of the border of data.fit: pad, whoever reads them."""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from entrypoint import Failure
from train.cli import data_check
from train.config.schema import DataConfig
from train.data import custom, decode, registry
from train.data.preprocessing import Preprocessing
from train.data.shards import packing

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
    found = data_check.DataFindings(title="t", splits=[split, validation], classes=[], per_class=({}, {}))
    assert "pages        1 hold several pages or frames, of which the first is read: b.tif" in found.as_text()
    assert "transparent  1 are transparent everywhere, and read as one colour: a.png" in found.as_text()
    training = json.loads(found.as_json())["training"]
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
