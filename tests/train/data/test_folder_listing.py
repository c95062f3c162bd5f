"""A listing of class folders: which is kept in the user's cache, and that none is read that a change has made wrong."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from images import write_classes

from train.config.schema import DataConfig
from train.data import image_folder, registry
from train.data.image_folder import FolderListing, ListingCache

CLASSES = ("ant", "bee")
LONG_AGO = 1_600_000_000
ODD = os.fsdecode(b"caf\xe9")  # no UTF-8


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Class folders with a nested, a linked and an odd folder. Each was modified at a time of its own, long ago."""
    root = tmp_path / "photos"
    for name in ("ant/1.jpg", "ant/2.PNG", "ant/notes.txt", f"ant/{ODD}/3.jpg", "bee/deep/deeper/4.jpg", "bee/5.jpg"):
        touch(root / name)
    for name in ("linked/6.jpg", "other/7.jpg"):
        touch(tmp_path / name)
    (root / "bee/link").symlink_to(tmp_path / "linked")
    folders = [path for path in tmp_path.rglob("*") if path.is_dir()]
    for number, folder in enumerate(folders):
        os.utime(folder, (0, LONG_AGO + number))
    return root


@pytest.fixture
def small_ones_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listings of a few names are kept too, also where the folder for temporary files is a FUSE file system."""
    monkeypatch.setattr(image_folder, "MIN_NAMES", 1)
    monkeypatch.setattr(image_folder, "MIN_NAMES_PER_FOLDER", 0)
    monkeypatch.setattr(image_folder, "MOUNTS_FILE", Path(os.devnull))


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


def a_minute_later() -> float:
    """What the clock says to a start that lists the folder long after its last change."""
    return time.time() + 60


@pytest.fixture
def cache(tmp_path: Path) -> ListingCache:
    return ListingCache(folder=tmp_path / "cache", clock=a_minute_later)


@pytest.fixture
def kept(cache: ListingCache, photos: Path, small_ones_count: None) -> Path:
    """The file in which the listing of the photos is kept."""
    cache.list_images(photos, CLASSES)
    (path,) = files_in(cache)
    return path


def files_in(cache: ListingCache) -> list[Path]:
    return sorted(cache.folder.glob("*")) if cache.folder else []


def content(listing: FolderListing) -> tuple[Any, ...]:
    """What a training takes from a listing."""
    inside = {name: [*folders] for name, folders in listing.inside.items()}
    return bytes(listing.letters), listing.lengths.tolist(), listing.counts, dict(listing.unread), inside


def refuse_to_list(*_: object) -> FolderListing:
    raise AssertionError("the folder was listed")


def test_a_listing_that_is_kept_is_read_and_the_folder_is_not_listed_again(
    cache: ListingCache, photos: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = content(image_folder.list_class_folders(photos, CLASSES))
    monkeypatch.setattr(image_folder, "list_class_folders", refuse_to_list)
    assert content(cache.list_images(photos, CLASSES)) == fresh
    assert fresh[2:] == ((3, 3), {".txt": 1}, {"ant": [ODD], "bee": ["deep", "link"]})


def add_file(photos: Path) -> None:
    touch(photos / "ant/9.jpg")


def remove_file(photos: Path) -> None:
    (photos / "bee/5.jpg").unlink()


def rename_file(photos: Path) -> None:
    (photos / "ant/1.jpg").rename(photos / "ant/8.jpg")


def rename_to_another_ending(photos: Path) -> None:
    (photos / "ant/notes.txt").rename(photos / "ant/notes.png")


def add_nested_file(photos: Path) -> None:
    touch(photos / "bee/deep/deeper/9.jpg")


def add_nested_folder(photos: Path) -> None:
    touch(photos / "bee/deep/new/9.jpg")


def remove_nested_folder(photos: Path) -> None:
    (photos / f"ant/{ODD}/3.jpg").unlink()
    (photos / f"ant/{ODD}").rmdir()


def add_file_to_linked_folder(photos: Path) -> None:
    touch(photos.parent / "linked/9.jpg")


def set_link_to_another_folder(photos: Path) -> None:
    (photos / "bee/link").unlink()
    (photos / "bee/link").symlink_to(photos.parent / "other")


def swap_the_folder_behind_the_link(photos: Path) -> None:
    (photos.parent / "linked").rename(photos.parent / "away")
    (photos.parent / "other").rename(photos.parent / "linked")


def swap_classes(photos: Path) -> None:
    (photos / "ant").rename(photos / "cat")
    (photos / "bee").rename(photos / "ant")
    (photos / "cat").rename(photos / "bee")


def replace_nested_folder_by_link(photos: Path) -> None:
    (photos / "bee/deep").rename(photos.parent / "deep")
    (photos / "bee/deep").symlink_to(photos.parent / "other")


CHANGES = (
    add_file,
    remove_file,
    rename_file,
    rename_to_another_ending,
    add_nested_file,
    add_nested_folder,
    remove_nested_folder,
    add_file_to_linked_folder,
    set_link_to_another_folder,
    swap_the_folder_behind_the_link,
    swap_classes,
    replace_nested_folder_by_link,
)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_folder_that_has_changed_is_listed_again(
    cache: ListingCache, photos: Path, kept: Path, change: Callable[[Path], None]
) -> None:
    before = content(cache.list_images(photos, CLASSES))
    change(photos)
    after = content(cache.list_images(photos, CLASSES))
    assert after == content(image_folder.list_class_folders(photos, CLASSES)) != before


def test_the_new_listing_replaces_the_old_one(cache: ListingCache, photos: Path, kept: Path) -> None:
    before = kept.read_bytes()
    add_file(photos)
    cache.list_images(photos, CLASSES)
    assert (files_in(cache), kept.read_bytes() != before) == ([kept], True)


def test_a_new_class_folder_is_listed(photos: Path, cache: ListingCache, small_ones_count: None) -> None:
    data = DataConfig(name="folder", root=str(photos), val_fraction=0.0)
    assert image_folder.list_splits(data, cache).classes == CLASSES
    touch(photos / "cat/1.jpg")
    listed = image_folder.list_splits(data, cache)
    assert (listed.classes, np.bincount(listed.training.labels).tolist()) == ((*CLASSES, "cat"), [3, 3, 1])


def test_a_folder_whose_time_was_set_back_after_a_change_is_listed_again(
    cache: ListingCache, photos: Path, kept: Path
) -> None:
    before = os.stat(photos / "ant")
    probe = photos.parent / "probe"
    probe.touch()
    while probe.stat().st_ctime_ns <= before.st_ctime_ns:  # until the file system's clock has moved on
        probe.touch()
    add_file(photos)
    os.utime(photos / "ant", ns=(before.st_atime_ns, before.st_mtime_ns))  # as tar and rsync do
    assert cache.list_images(photos, CLASSES).counts == (4, 3)


def test_a_folder_that_has_just_changed_is_not_kept(photos: Path, cache: ListingCache, small_ones_count: None) -> None:
    ListingCache(folder=cache.folder).list_images(photos, CLASSES)  # with the real clock: it was made a moment ago
    assert files_in(cache) == []


def test_a_link_that_may_become_a_folder_later_keeps_the_listing_out_of_the_cache(
    photos: Path, cache: ListingCache, small_ones_count: None
) -> None:
    (photos / "bee/unmounted").symlink_to(photos.parent / "disk")
    assert cache.list_images(photos, CLASSES).counts == (3, 3)
    touch(photos.parent / "disk/9.jpg")
    assert cache.list_images(photos, CLASSES).counts == (3, 4)


def test_a_link_to_an_image_that_is_gone_does_not(photos: Path, cache: ListingCache, small_ones_count: None) -> None:
    (photos / "bee/gone.jpg").symlink_to(photos.parent / "gone.jpg")
    cache.list_images(photos, CLASSES)
    assert len(files_in(cache)) == 1


def listing(names: int = 100_000, folders: int = 2, times: tuple[int, ...] = (1, 2)) -> FolderListing:
    """A listing of so many names; the folders have changed at these times, in turns."""
    states = {str(number): (number, 0, 0, times[number % len(times)]) for number in range(folders)}
    lengths = np.ones(names - 10, np.int32)
    return FolderListing(
        letters=np.zeros(0, np.uint8), lengths=lengths, counts=(), unread={".txt": 10}, inside={}, states=states
    )


@pytest.mark.parametrize(
    ("candidate", "is_kept"),
    [
        (listing(), True),
        (listing(names=99_999), False),
        (listing(folders=10_000), True),
        (listing(folders=10_001), False),
        (listing(times=(5, 5)), False),
    ],
    ids=["enough names", "few names", "ten names in a folder", "fewer in a folder", "one time for all folders"],
)
def test_a_listing_is_kept_if_that_saves_time_and_the_times_of_its_folders_mean_something(
    candidate: FolderListing, is_kept: bool
) -> None:
    assert image_folder.is_worth_keeping(candidate, begun_at=LONG_AGO) is is_kept


@pytest.mark.parametrize(("changed", "is_kept"), [(LONG_AGO - 11, True), (LONG_AGO - 9, False), (LONG_AGO + 5, False)])
def test_the_last_change_must_be_ten_seconds_before_the_listing(changed: int, is_kept: bool) -> None:
    candidate = listing(times=(1, changed * 10**9))
    assert image_folder.is_worth_keeping(candidate, begun_at=LONG_AGO) is is_kept


@pytest.mark.parametrize(("file_system", "number"), [("fuse.s3fs", 0), ("ext4", 1)])
def test_a_folder_on_a_fuse_file_system_is_not_kept(
    file_system: str,
    number: int,
    photos: Path,
    cache: ListingCache,
    small_ones_count: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = photos.stat().st_dev
    mounts = photos.parent / "mountinfo"
    mounts.write_text(f"36 35 {os.major(device)}:{os.minor(device)} / /data rw shared:1 - {file_system} bucket rw\n")
    monkeypatch.setattr(image_folder, "MOUNTS_FILE", mounts)
    cache.list_images(photos, CLASSES)
    assert len(files_in(cache)) == number


def test_the_device_of_a_fuse_file_system_is_the_one_that_stat_gives() -> None:
    with_fuse = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " - fuse" in line]
    points = [line.split()[4] for line in with_fuse if os.access(line.split()[4], os.R_OK)]
    assert {os.stat(point).st_dev for point in points} <= image_folder._fuse_devices()


def test_where_the_mounts_are_not_known_nothing_is_kept(
    photos: Path, cache: ListingCache, small_ones_count: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_folder, "MOUNTS_FILE", photos / "nowhere")
    cache.list_images(photos, CLASSES)
    assert files_in(cache) == []


def flip_a_letter(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def write_without_header(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, letters=np.zeros(1, np.uint8))


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES = {
    "a letter": flip_a_letter,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-3]),
    "empty": lambda path: path.write_bytes(b""),
    "zeros": lambda path: path.write_bytes(bytes(1000)),
    "no header": write_without_header,
    "a folder": replace_by_folder,
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_from_a_damaged_file_nothing_is_read(
    cache: ListingCache, photos: Path, kept: Path, damage: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    damage(kept)
    assert content(cache.list_images(photos, CLASSES)) == content(image_folder.list_class_folders(photos, CLASSES))
    assert capfd.readouterr() == ("", "")


def test_a_listing_of_another_version_of_this_program_is_not_read(
    cache: ListingCache, photos: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = kept.read_bytes()
    monkeypatch.setattr(image_folder, "LISTING_VERSION", image_folder.LISTING_VERSION + 1)
    cache.list_images(photos, CLASSES)
    assert kept.read_bytes() != before


def test_a_cache_that_cannot_be_written_keeps_nobody_from_listing(photos: Path, small_ones_count: None) -> None:
    (photos.parent / "file").touch()
    cache = ListingCache(folder=photos.parent / "file/cache", clock=a_minute_later)
    assert cache.list_images(photos, CLASSES).counts == (3, 3)


def test_a_rank_that_is_no_writer_reads_a_listing_and_writes_none(
    photos: Path, cache: ListingCache, small_ones_count: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = replace(cache, is_writer=False)
    reader.list_images(photos, CLASSES)
    assert files_in(cache) == []
    fresh = content(cache.list_images(photos, CLASSES))
    monkeypatch.setattr(image_folder, "list_class_folders", refuse_to_list)
    assert content(reader.list_images(photos, CLASSES)) == fresh


def test_two_folders_have_two_listings(photos: Path, cache: ListingCache, kept: Path) -> None:
    other = write_classes(photos.parent / "others", ant=1, bee=1)
    assert cache.list_images(other, CLASSES).counts == (1, 1)
    assert cache.list_images(photos, CLASSES).counts == (3, 3)


def test_a_name_that_another_working_folder_gives_to_another_folder_is_another(
    photos: Path, cache: ListingCache, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    assert cache.list_images(Path(), CLASSES).counts == (3, 3)
    assert files_in(cache) == [kept]  # the folder that is already kept
    write_classes(photos.parent / "others", ant=1, bee=1)
    monkeypatch.chdir(photos.parent / "others")
    assert cache.list_images(Path(), CLASSES).counts == (1, 1)


def test_the_file_names_the_folder_that_it_lists(photos: Path, kept: Path) -> None:
    with np.load(kept) as arrays:
        assert json.loads(arrays["facts"].tobytes())["folder"] == str(photos)


@pytest.fixture
def all_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_folder, "is_worth_keeping", lambda *_, **__: True)
    monkeypatch.setattr(image_folder, "MOUNTS_FILE", Path(os.devnull))


def test_opening_the_data_keeps_the_listing_in_the_users_cache_folder(
    tmp_path: Path, all_are_kept: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_classes(tmp_path / "photos", ant=4, bee=4)
    data = DataConfig(name="folder", root=str(tmp_path / "photos"), image_size=8)
    first = registry.open_splits(data, cache_folder=tmp_path / "cache")
    assert len(list((tmp_path / "cache/listings").iterdir())) == 1
    monkeypatch.setattr(image_folder, "list_class_folders", refuse_to_list)
    second = registry.open_splits(data, cache_folder=tmp_path / "cache")
    assert (list(second.training.paths), second.notes) == (list(first.training.paths), first.notes)


def test_without_a_cache_folder_nothing_is_kept(tmp_path: Path, all_are_kept: None) -> None:
    write_classes(tmp_path / "photos", ant=4, bee=4)
    registry.open_splits(DataConfig(name="folder", root=str(tmp_path / "photos"), image_size=8))
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]
