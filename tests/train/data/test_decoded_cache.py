"""A cache of decoded images is complete or not there, and gives the pixels of the files, decoded once."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hosts import together
from images import write_classes, write_image
from shut import NOBODY, ONLY_ROOT, being, of_everybody, umask

from entrypoint import ExitCode, Failure, Heartbeat
from train import file_lock
from train.config.schema import DataConfig
from train.data import decode, decoded_cache, registry
from train.data.splits import DataSplits
from train.distributed.shared_memory import SINGLE_RANK

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 4, 4, 3), np.uint8)
READABLE = np.array([True, True, False, True, True])


def write_pixels(path: Path) -> None:
    with decoded_cache.write_cache(path, 5, (4, 4, 3)) as writer:
        writer.put(np.array([3, 4]), PIXELS[3:], READABLE[3:])
        writer.put(np.array([0, 1, 2]), PIXELS[:3], READABLE[:3])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_pixels(tmp_path / "a.pixels")
    return tmp_path / "a.pixels"


def open_pixels(path: Path) -> decoded_cache.DecodedCache:
    cache = decoded_cache.open_cache(path, 5, (4, 4, 3))
    assert cache is not None
    return cache


def test_images_come_back_in_the_order_in_which_they_are_asked_for(path: Path) -> None:
    pixels, fine, damaged = open_pixels(path).read(np.array([4, 0, 4]))
    assert np.array_equal(pixels, PIXELS[[4, 0, 4]])
    assert (fine.tolist(), damaged) == ([True] * 3, False)


def test_an_image_that_was_never_there_cannot_be_used_and_is_no_damage(path: Path) -> None:
    _, fine, damaged = open_pixels(path).read(np.array([1, 2]))
    assert (fine.tolist(), damaged) == ([True, False], False)


@pytest.mark.parametrize("offset", [0, 60, 5 * 48, 5 * 48 + 19])
def test_one_bit_that_flipped_is_damage(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)
    _, fine, damaged = open_pixels(path).read(np.arange(5))
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
    cache = open_pixels(path)
    assert (cache.give_up(), cache.give_up()) == (True, False)
    assert decoded_cache.open_cache(path, 5, (4, 4, 3)) is None


def test_an_error_on_the_way_leaves_what_was_there(path: Path) -> None:
    before = sorted(path.parent.iterdir())
    with pytest.raises(OSError, match="disk"), decoded_cache.write_cache(path, 5, (4, 4, 3)):
        raise OSError("disk")
    assert sorted(path.parent.iterdir()) == before
    assert np.array_equal(open_pixels(path).pixels, PIXELS)


@pytest.mark.parametrize("left", [".tmp-a.pixels-0123", ".tmp-a.json-0123", ".tmp-a.json"])
def test_what_a_killed_writer_has_left_is_removed(tmp_path: Path, left: str) -> None:
    (tmp_path / left).write_bytes(b"half")
    write_pixels(tmp_path / "a.pixels")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.pixels"]


def test_too_little_room_is_known_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = decoded_cache.cache_file_bytes(5, (4, 4, 3)) - 1
    monkeypatch.setattr(decoded_cache.shutil, "disk_usage", lambda folder: SimpleNamespace(free=free))
    with pytest.raises(OSError, match="MB are needed") as caught:
        write_pixels(tmp_path / "a.pixels")
    assert (caught.value.errno, list(tmp_path.iterdir())) == (errno.ENOSPC, [])


ALL = np.array([3, 0, 1, 2])


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    write_classes(tmp_path / "images", ant=4, bee=4)
    return DataConfig(
        name="folder", root=str(tmp_path / "images"), image_size=8, val_fraction=0.5, cache=str(tmp_path / "c")
    )


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were decoded."""
    seen: list[Path] = []
    real: Callable[..., object] = decode.decode_image

    def record(path: Path, *rest: object, **named: object) -> object:
        seen.append(path)
        return real(path, *rest, **named)

    monkeypatch.setattr(decode, "decode_image", record)
    return seen


def used(data: DataConfig) -> DataSplits:
    return decoded_cache.use_cache(registry.open_splits(data), data, SINGLE_RANK, Heartbeat())


def pixels(sets: DataSplits) -> list[list[int]]:
    return [side.read(ALL).flatten().tolist() for side in (sets.training, sets.validation)]


def test_the_images_are_those_of_the_files_and_are_decoded_once(data: DataConfig, decoded: list[Path]) -> None:
    expected = pixels(registry.open_splits(data))
    decoded.clear()
    assert pixels(used(data)) == expected
    assert len(decoded) == len(set(decoded)) == 8
    assert pixels(used(data)) == expected
    assert len(decoded) == 8


def test_another_split_of_the_same_files_takes_the_same_cache(data: DataConfig, decoded: list[Path]) -> None:
    used(data)
    other = used(replace(data, val_fraction=0.25))
    assert other.validation.labels.shape == (2,)
    assert len(decoded) == 8


def test_a_cache_of_an_older_way_to_decode_is_not_taken(
    data: DataConfig, decoded: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(decoded_cache, "CACHE_VERSION", decoded_cache.CACHE_VERSION - 1)
        used(data)
    used(data)
    assert len(decoded) == 16


@pytest.mark.parametrize("change", ["size", "content", "time", "one more"])
def test_other_images_are_another_cache(data: DataConfig, decoded: list[Path], change: str) -> None:
    used(data)
    first = Path(data.root, "ant", "000.png")
    if change == "content":
        write_image(first, 9, (16, 16))
    if change == "time":
        os.utime(first, ns=(1, 1))
    if change == "one more":
        write_image(first.with_name("zzz.png"), 9)
    used(replace(data, image_size=16) if change == "size" else data)
    assert len(decoded) == (17 if change == "one more" else 16)


def test_a_folder_that_was_moved_keeps_its_cache(data: DataConfig, decoded: list[Path], tmp_path: Path) -> None:
    used(data)
    Path(data.root).rename(tmp_path / "elsewhere")
    used(replace(data, root=str(tmp_path / "elsewhere")))
    assert len(decoded) == 8


def test_a_broken_file_is_told_as_without_a_cache(data: DataConfig) -> None:
    Path(data.root, "bee", "001.png").write_bytes(b"no image")
    sets = used(replace(data, val_fraction=0.0))
    with pytest.raises(Failure, match="image 5 cannot be read") as caught:
        sets.training.read(np.arange(8))
    assert (caught.value.code, "001.png" in str(caught.value)) == (ExitCode.DATA, True)


def test_a_file_that_is_gone_ends_it_and_leaves_nothing_half(data: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    sets = registry.open_splits(data)
    monkeypatch.setattr(decoded_cache, "cache_key", lambda *_: Path(data.root, "ant", "000.png").unlink() or "name")
    with pytest.raises(Failure) as caught:
        decoded_cache.use_cache(sets, data, SINGLE_RANK, Heartbeat())
    assert (caught.value.code, list(Path(data.cache or "").iterdir())) == (ExitCode.NO_INPUT, [])


def test_a_file_that_goes_away_while_it_is_looked_for_is_named(data: DataConfig) -> None:
    sets = registry.open_splits(data)
    Path(data.root, "ant", "000.png").unlink()
    with pytest.raises(Failure, match="cannot be read") as caught:
        decoded_cache.use_cache(sets, data, SINGLE_RANK, Heartbeat())
    assert (caught.value.code, "000.png: it is gone" in str(caught.value)) == (ExitCode.NO_INPUT, True)


def test_damage_is_mended_from_the_file_said_and_made_anew(
    data: DataConfig, decoded: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    expected = pixels(used(data))
    (file,) = Path(data.cache or "").glob("*.pixels")
    spoiled = bytearray(file.read_bytes())
    spoiled[0] ^= 1
    file.write_bytes(spoiled)
    decoded.clear()
    sets = used(data)
    assert [pixels(sets), pixels(sets)] == [expected, expected]
    assert (len(decoded), capsys.readouterr().err.count("is damaged")) == (2, 1)
    assert pixels(used(data)) == expected
    assert len(decoded) == 10


def test_of_several_ranks_one_decodes(data: DataConfig, decoded: list[Path]) -> None:
    sets = together(
        lambda host: decoded_cache.use_cache(registry.open_splits(data), data, host, Heartbeat()), [0, 0, 0]
    )
    assert len({str(pixels(splits)) for splits in sets}) == 1
    assert len(decoded) == 8


def test_a_holder_that_died_is_not_waited_for(data: DataConfig) -> None:
    sets = registry.open_splits(data)
    name = decoded_cache.cache_key(decoded_cache.combine_files(sets.training, sets.validation)[0], data, Heartbeat())
    folder = Path(data.cache or "")
    folder.mkdir()
    held = file_lock.acquire_lock(
        folder / f"{name}.lease", me=replace(file_lock.this_process_as_holder(), pid=2**22 + 1)
    )
    assert held is not None
    used(data)
    assert sorted(path.suffix for path in folder.iterdir()) == [".json", ".pixels"]


def test_a_folder_that_cannot_be_written_is_refused_with_the_key(data: DataConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Failure, match="cannot write") as caught:
        used(replace(data, cache=str(tmp_path / "file" / "c")))
    assert (caught.value.code, "data.cache" in caught.value.fix) == (ExitCode.OUTPUT, True)


@pytest.fixture
def shared(data: DataConfig) -> Iterator[DataConfig]:
    """Images that every user may read, and a folder for a cache where all may write."""
    with of_everybody() as folder, umask(0o077):
        (folder / "c").mkdir()
        (folder / "c").chmod(0o1777)
        Path(data.root).rename(folder / "images")
        for path in (folder / "images").rglob("*"):
            path.chmod(0o755)
        yield replace(data, root=str(folder / "images"), cache=str(folder / "c"))


@ONLY_ROOT
@pytest.mark.parametrize("shut", ["*.json", "*.pixels"])
def test_a_cache_that_only_another_user_may_read_is_not_decoded_again(
    shared: DataConfig, decoded: list[Path], shut: str
) -> None:
    used(shared)
    for path in Path(shared.cache or "").iterdir():
        path.chmod(0o600 if path.match(shut) else 0o644)
    with being(NOBODY), pytest.raises(Failure, match=r"data\.cache is root's") as caught:
        used(shared)
    assert (caught.value.code, "g+rX" in caught.value.fix, len(decoded)) == (ExitCode.OUTPUT, True, 8)


@ONLY_ROOT
def test_what_another_user_fills_for_himself_is_not_waited_for(
    shared: DataConfig, decoded: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sets, times = registry.open_splits(shared), iter(range(60))
    name = decoded_cache.cache_key(decoded_cache.combine_files(sets.training, sets.validation)[0], shared, Heartbeat())
    (left := Path(shared.cache or "", f"{name}.lease.1")).write_text("{}")
    left.with_name(f".tmp-{name}.pixels-0123").touch()

    def touch(_: float) -> None:
        with being(0):
            os.utime(left, ns=(0, next(times)))

    monkeypatch.setattr(file_lock.time, "sleep", touch)
    with being(NOBODY), pytest.raises(Failure, match=r"data\.cache is root's"):
        used(shared)
    assert decoded == []


@pytest.mark.parametrize("inside", ["", "ant", "cache", "ant/../cache"])
def test_a_cache_among_the_images_is_refused(data: DataConfig, inside: str) -> None:
    with pytest.raises(Failure, match=r"inside data\.root") as caught:
        used(replace(data, cache=str(Path(data.root, inside))))
    assert caught.value.code == ExitCode.USAGE


def test_data_that_is_no_folder_of_images_is_left_as_it_is(tmp_path: Path) -> None:
    data = DataConfig(samples=8, image_size=8, cache=str(tmp_path / "c"))
    sets = used(data)
    assert not isinstance(sets.training, decoded_cache.CachedSource)
    assert not list(tmp_path.iterdir())
    assert "data.cache does nothing here" in sets.notes[-1]
