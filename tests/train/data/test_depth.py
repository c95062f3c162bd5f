"""Whether images of 16 bits fill them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import decode, registry


def write(folder: Path, *highest: int, name: str = "a.png", kind: type = np.uint16) -> list[Path]:
    """For each number an image whose pixels run from 0 to it."""
    paths = [folder / f"{number}-{name}" for number in range(len(highest))]
    for path, value in zip(paths, highest, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.linspace(0, value, 64).reshape(8, 8).astype(kind)).save(path)
    return paths


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
    assert decode.highest_values(write(tmp_path, value, name=name, kind=kind)) == [expected]


def test_a_few_files_of_many_are_looked_at_from_the_first_to_the_last(tmp_path: Path) -> None:
    found = decode.highest_values(write(tmp_path, *range(300, 360)))
    assert (len(found), found[0], found[-1]) == (decode.NUM_CHECKED_IMAGES, 300, 359)


def test_files_that_are_no_images_are_left_to_who_reads_them(tmp_path: Path) -> None:
    (tmp_path / "b.png").write_bytes(b"no")
    assert decode.highest_values([*write(tmp_path, 300), tmp_path / "b.png", tmp_path / "gone.png"]) == [300]
    assert decode.highest_values([]) == []


FINE = {"full": [65535, 900], "13-bits": [4096], "8-bits": [None, None], "black": [0, 0], "none": []}


@pytest.mark.parametrize("values", FINE.values(), ids=FINE)
def test_of_images_that_use_their_bits_nothing_is_said(values: list[int | None]) -> None:
    assert decode.bit_depth_warnings(values, "data.root d") == ()


def test_images_of_12_bits_are_warned_of() -> None:
    (said,) = decode.bit_depth_warnings([3000, None, 4095, 12], "data.root d")
    assert said == (
        "data.root d: 3 images of 16 bits looked at, no value above 4,095 of 65,535: of 16 bits the upper 8 are read, "
        "16 gray levels are left. fix: multiply them by 16 and save them again"
    )


def test_images_that_would_all_be_black_are_refused() -> None:
    with pytest.raises(Failure, match="would all be read as black") as caught:
        decode.bit_depth_warnings([255, 200], "data.root d")
    assert (caught.value.code, caught.value.fix) == (ExitCode.DATA, "save them again with 8 bits")


@pytest.mark.parametrize("others", [None, 0])
def test_a_dark_image_among_others_is_not_refused(others: int | None) -> None:
    (said,) = decode.bit_depth_warnings([255, others], "data.root d")
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
