"""Whether images of 16 bits fill them."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import decode, registry
from train.data.shards import index as shard_index


def write(folder: Path, *highest: int, name: str = "a.png", kind: type = np.uint16) -> list[Path]:
    """For each number an image whose pixels run from 0 to it."""
    paths = [folder / f"{number}-{name}" for number in range(len(highest))]
    for path, value in zip(paths, highest, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.linspace(0, value, 64).reshape(8, 8).astype(kind)).save(path)
    return paths


def highest_values(paths: list[Path]) -> list[int | None]:
    """Of the files that are looked at."""
    return [facts.highest for facts in decode.sample_facts(paths.__getitem__, len(paths))]


def warned(values: list[int | None]) -> tuple[str, ...]:
    """What is said of images with these highest values."""
    return decode.sample_warnings([decode.ImageFacts(highest=value) for value in values], "data.root d")


DEEP = {
    "png": ("a.png", np.uint16, 3071, 3071),
    "tiff": ("a.tif", np.uint16, 3071, 3071),
    "pgm": ("a.pgm", np.uint16, 3071, 3071),
    "tiff-of-32-bits": ("a.tif", np.int32, 255, 255),
    "full": ("a.png", np.uint16, 65535, 65535),
    "8-bits": ("a.png", np.uint8, 200, None),
    "floats": ("a.tif", np.float32, 200, None),
    "more-than-16-bits": ("a.tif", np.int32, 70_000, None),
}


@pytest.mark.parametrize(("name", "kind", "value", "expected"), DEEP.values(), ids=DEEP)
def test_the_highest_value_of_a_deep_image_is_read(
    tmp_path: Path, name: str, kind: type, value: int, expected: int | None
) -> None:
    assert highest_values(write(tmp_path, value, name=name, kind=kind)) == [expected]


def test_a_few_files_of_many_are_looked_at_from_the_first_to_the_last(tmp_path: Path) -> None:
    found = highest_values(write(tmp_path, *range(300, 360)))
    assert (len(found), found[0], found[-1]) == (decode.NUM_CHECKED_IMAGES, 300, 359)


def test_files_that_are_no_images_are_left_to_who_reads_them(tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes(b"no")
    assert highest_values([*write(tmp_path, 300), tmp_path / "b.png", tmp_path / "gone.png"]) == [300]
    assert highest_values([]) == []


FINE = {"full": [65535, 900], "13-bits": [4096], "8-bits": [None, None], "black": [0, 0], "none": []}


@pytest.mark.parametrize("values", FINE.values(), ids=FINE)
def test_of_images_that_use_their_bits_nothing_is_said(values: list[int | None]) -> None:
    assert warned(values) == ()


def test_images_of_12_bits_are_warned_of() -> None:
    (said,) = warned([3000, None, 4095, 12])
    assert said == (
        "data.root d: 3 images of 16 bits looked at, no value above 4,095 of 65,535: of 16 bits the upper 8 are read, "
        "16 gray levels are left. fix: multiply them by 16 and save them again"
    )


def test_images_that_would_all_be_black_are_refused() -> None:
    with pytest.raises(Failure, match="would all be read as black") as caught:
        warned([255, 200])
    assert (caught.value.code, caught.value.fix) == (ExitCode.DATA, "save them again with 8 bits")


@pytest.mark.parametrize("others", [None, 0])
def test_a_dark_image_among_others_is_not_refused(others: int | None) -> None:
    (said,) = warned([255, others])
    assert "nothing but black is left. fix: save them again with 8 bits" in said


@pytest.mark.parametrize(("name", "kind"), [("a.png", np.uint16), ("a.tif", np.int32)])
def test_a_folder_of_such_images_is_not_trained_on(tmp_path: Path, name: str, kind: type) -> None:
    for label in ("cat", "dog"):
        write(tmp_path / label, *[255] * 5, name=name, kind=kind)
    with pytest.raises(Failure, match="would all be read as black"):
        registry.open_splits(DataConfig(name="folder", root=str(tmp_path)))


def test_a_folder_of_12_bits_is_warned_of_at_the_start(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        write(tmp_path / label, *[4095] * 5)
    (said,) = registry.open_splits(DataConfig(name="folder", root=str(tmp_path))).warnings
    assert said.startswith(f"data.root {tmp_path}: 8 images of 16 bits looked at")


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
        warned([0, 10, 20, 40, 250, 250, 250, 250])


def test_black_shapes_in_an_alpha_channel_of_16_bits_are_no_dark_images() -> None:
    facts = [decode.ImageFacts(highest=0)] * 8
    assert decode.sample_warnings(facts, "icons") == ()


OWN = """
import torch
from train.data.shape import Shape
from train.data.splits import DataSplits, ImageFileSource

def make(data):
    files = [f"{data.root}/{number}-a.png" for number in range(4)]
    source = ImageFileSource(files, torch.arange(4) % 2, 8)
    return DataSplits(training=source, validation=source, classes=("a", "b"), shape=Shape(channels=3, size=(8, 8)))
"""


def test_the_files_of_a_data_set_of_ones_own_are_looked_at_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_dark_files.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path, 255, 255, 255, 255)
    with pytest.raises(Failure, match="own_dark_files:make holds images of 16 bits that would all be read as black"):
        registry.open_splits(DataConfig(name="own_dark_files:make", root=str(tmp_path), image_size=8))
