"""Arrays of an .npz file: mapped where that is possible, and in every case the same."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from train.data import arrays

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 5, 5, 3), np.uint8)
LARGE = np.tile(IMAGES, (20, 1, 1, 1))  # more than is read with a header
FLOATS = IMAGES.astype(np.float32)


def loaded(path: Path, name: str = "images") -> npt.NDArray[Any]:
    return arrays.load_npz(path, lambda names: [name])[name].numpy()


def mapped(path: Path) -> bool:
    """Whether memory of this process is memory of the file."""
    return str(path) in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("name", ["images", "x_train", "y" * 300])
@pytest.mark.parametrize("array", [IMAGES, FLOATS], ids=["bytes", "floats"])
def test_what_numpy_saves_is_mapped_wherever_it_lies(array: npt.NDArray[Any], name: str, tmp_path: Path) -> None:
    np.savez(path := tmp_path / "a.npz", other=np.arange(5), **{name: array})
    found = loaded(path, name)
    assert mapped(path)
    assert np.array_equal(found, array)


def by_version(array: npt.NDArray[Any], version: tuple[int, int]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive, archive.open("images.npy", "w") as entry:
            np.lib.format.write_array(entry, array, version)

    return write


COPIED: dict[str, Callable[[Path], None]] = {
    "compressed": lambda path: np.savez_compressed(path, images=IMAGES),
    "columns": lambda path: np.savez(path, images=np.asfortranarray(IMAGES)),
    "another-order": lambda path: np.savez(path, images=IMAGES.astype(">i2")),
    "labels": lambda path: np.savez(path, images=IMAGES[0, 0]),
    "nothing": lambda path: np.savez(path, images=IMAGES[:0]),
}


@pytest.mark.parametrize("write", COPIED.values(), ids=COPIED)
def test_what_lies_otherwise_in_the_file_is_read_and_counted(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(path := tmp_path / "a.npz")
    with np.load(path) as wanted:
        found = loaded(path)
        assert not mapped(path)
        assert np.array_equal(found, wanted["images"])
    assert arrays.unmapped_bytes(path, ["images"]) > found.nbytes


@pytest.mark.parametrize("version", [(2, 0), (3, 0)])
def test_of_what_is_mapped_nothing_is_copied(version: tuple[int, int], tmp_path: Path) -> None:
    by_version(IMAGES, version)(path := tmp_path / "a.npz")
    assert np.array_equal(loaded(path), IMAGES)
    assert arrays.unmapped_bytes(path, ["images", "labels"]) == 0


@pytest.mark.parametrize("place", [0, LARGE.nbytes - 1])
def test_one_bit_that_flipped_in_what_would_be_mapped_is_damage(place: int, tmp_path: Path) -> None:
    np.savez(path := tmp_path / "a.npz", images=LARGE)
    content = bytearray(path.read_bytes())
    content[content.index(LARGE.tobytes()) + place] ^= 1
    path.write_bytes(content)
    with pytest.raises(zipfile.BadZipFile, match="CRC"):
        loaded(path)


def test_a_shape_of_more_bytes_than_there_are_is_not_mapped_beyond_them(tmp_path: Path) -> None:
    with zipfile.ZipFile(path := tmp_path / "a.npz", "w") as archive:
        with archive.open("images.npy", "w") as entry:
            told = {"descr": "<f4", "fortran_order": False, "shape": IMAGES.shape}
            np.lib.format.write_array_header_1_0(entry, told)
            entry.write(IMAGES.tobytes())
        archive.writestr("more.bin", bytes(10_000))
    with pytest.raises(ValueError, match="bytes"):
        arrays.load_npz(path, lambda _: ["images"])
