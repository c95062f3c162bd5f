"""A file of images that is whole or not there."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from train.data import decoded_cache

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3), np.uint8)
WHOLE = np.array([True, True, False, True, True])


def write(path: Path) -> None:
    with decoded_cache.write_cache(path, 5, (4, 4, 3)) as writer:
        writer.put(np.array([3, 4]), PIXELS[3:], WHOLE[3:])
        writer.put(np.array([0, 1, 2]), PIXELS[:3], WHOLE[:3])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "a.pixels")
    return tmp_path / "a.pixels"


def read(path: Path) -> decoded_cache.DecodedCache:
    found = decoded_cache.open_cache(path, 5, (4, 4, 3))
    assert found is not None
    return found


def test_images_come_back_in_the_order_in_which_they_are_asked_for(path: Path) -> None:
    pixels, fine, damaged = read(path).read(np.array([4, 0, 4]))
    assert np.array_equal(pixels, PIXELS[[4, 0, 4]])
    assert (fine.tolist(), damaged) == ([True] * 3, False)


def test_an_image_that_was_never_there_cannot_be_used_and_is_no_damage(path: Path) -> None:
    _, fine, damaged = read(path).read(np.array([1, 2]))
    assert (fine.tolist(), damaged) == ([True, False], False)


@pytest.mark.parametrize("place", [0, 60, 5 * 48, 5 * 48 + 19])
def test_one_bit_that_flipped_is_damage(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    _, fine, damaged = read(path).read(np.arange(5))
    assert (fine.sum(), damaged) == (3, True)


@pytest.mark.parametrize("spoil", ["cut", "longer", "gone", "no manifest", "other size"])
def test_what_is_no_whole_file_of_these_images_is_none(path: Path, spoil: str) -> None:
    content = path.read_bytes()
    path.write_bytes({"cut": content[:-1], "longer": content + b"0"}.get(spoil, content))
    if spoil == "gone":
        path.unlink()
    if spoil == "no manifest":
        path.with_suffix(".json").write_text("{")
    assert decoded_cache.open_cache(path, 5, (8, 4, 3) if spoil == "other size" else (4, 4, 3)) is None


def test_who_gives_it_up_first_says_so_and_the_next_start_finds_none(path: Path) -> None:
    found = read(path)
    assert (found.give_up(), found.give_up()) == (True, False)
    assert decoded_cache.open_cache(path, 5, (4, 4, 3)) is None


def test_an_error_on_the_way_leaves_what_was_there(path: Path) -> None:
    before = sorted(path.parent.iterdir())
    with pytest.raises(OSError, match="disk"), decoded_cache.write_cache(path, 5, (4, 4, 3)):
        raise OSError("disk")
    assert sorted(path.parent.iterdir()) == before
    assert np.array_equal(read(path).pixels, PIXELS)


@pytest.mark.parametrize("left", [".tmp-a.pixels-0123", ".tmp-a.json-0123", ".tmp-a.json"])
def test_what_a_killed_writer_has_left_is_removed(tmp_path: Path, left: str) -> None:
    (tmp_path / left).write_bytes(b"half")
    write(tmp_path / "a.pixels")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.pixels"]


def test_too_little_room_is_known_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = decoded_cache.cache_file_bytes(5, (4, 4, 3)) - 1
    monkeypatch.setattr(decoded_cache.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    with pytest.raises(OSError, match="MB are needed") as caught:
        write(tmp_path / "a.pixels")
    assert (caught.value.errno, list(tmp_path.iterdir())) == (errno.ENOSPC, [])
