"""Image files are found in class folders, split, read, counted, and their listing is kept while it is right."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hosts import together
from images import write_classes, write_image
from PIL import Image

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import image_folder, registry, statistics
from train.data.image_folder import FolderListing, ListingCache
from train.data.registry import DataSummary
from train.data.splits import DataSplits, ImageFileSource, SampleSource
from train.distributed import shared_memory
from train.distributed.shared_memory import HostRanks


def folder_config(root: Path, **changes: object) -> DataConfig:
    return DataConfig(name="folder", root=str(root), image_size=8, **changes)  # type: ignore[arg-type]


def test_classes_are_the_folders_in_alphabetical_order(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", dog=2, ant=3)
    write_classes(tmp_path / "val", ant=1, dog=1)
    splits = image_folder.list_splits(folder_config(tmp_path))
    assert splits.classes == ("ant", "dog")
    assert splits.training.labels.tolist() == [0, 0, 0, 1, 1]
    assert splits.validation.labels.tolist() == [0, 1]


def test_without_a_validation_folder_a_share_of_every_class_is_split_off(tmp_path: Path) -> None:
    write_classes(tmp_path, ant=20, bee=10, cat=10)
    splits = image_folder.list_splits(folder_config(tmp_path, val_fraction=0.2))
    assert np.bincount(splits.validation.labels).tolist() == [4, 2, 2]
    assert not set(splits.training.paths) & set(splits.validation.paths)
    assert len(splits.training.paths) + len(splits.validation.paths) == 40


def test_the_split_is_the_same_every_time(tmp_path: Path) -> None:
    write_classes(tmp_path, ant=20, bee=20)
    first, second = (set(image_folder.list_splits(folder_config(tmp_path)).validation.paths) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("split", ["", "train"], ids=["split", "folders of their own"])
def test_one_long_name_does_not_make_the_paths_of_all_others_as_long(tmp_path: Path, split: str) -> None:
    write_classes(tmp_path / split, ant=20, bee=20)
    if split:
        write_classes(tmp_path / "val", ant=1, bee=1)
    write_image(tmp_path / split / "bee" / f"{'x' * 200}.png")
    splits = image_folder.list_splits(folder_config(tmp_path))
    assert len(pickle.dumps(splits.training.paths)) < 40 * 50 + 1000  # 40 times 200 letters, as one array of text


def test_a_path_that_is_no_utf_8_is_read(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", ant=2, bee=1)
    write_classes(tmp_path / "val", ant=1, bee=1)
    os.rename(tmp_path / "train/ant/001.png", os.fsencode(tmp_path / "train/ant") + b"/\xe9.png")
    assert registry.open_splits(folder_config(tmp_path)).training.read(np.array([1])).shape == (1, 8, 8, 3)


def test_the_working_folder_may_be_the_folder_of_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_classes(tmp_path, ant=5, bee=5))
    assert sorted(image_folder.list_splits(folder_config(Path())).validation.paths)[0].startswith("ant/")


def test_pixels_come_out_as_they_were_written(tmp_path: Path) -> None:
    write_classes(tmp_path / "train", ant=2, bee=2)
    write_classes(tmp_path / "test", ant=1, bee=1)
    training = registry.open_splits(folder_config(tmp_path)).training
    assert training.read(np.array([3, 0]))[:, 0, 0, 0].tolist() == [51, 0]


@pytest.mark.parametrize(("ending", "written_as"), [(".jfif", "JPEG"), (".jpe", "JPEG"), (".avif", "AVIF")])
def test_images_with_rarer_endings_are_read(tmp_path: Path, ending: str, written_as: str) -> None:
    for name, number in (("ant", 0), ("bee", 200)):
        file = write_image(tmp_path / f"{name}/0.png", number)
        with Image.open(file) as image:
            image.save(file.with_suffix(ending), written_as)
        file.unlink()
    training = registry.open_splits(folder_config(tmp_path, val_fraction=0.0)).training
    assert training.read(np.array([0, 1]))[:, 0, 0, 0].tolist() == pytest.approx([0, 200], abs=3)


def test_another_number_of_classes_than_the_config_says_is_refused(tmp_path: Path) -> None:
    write_classes(tmp_path, ant=5, bee=5)
    with pytest.raises(Failure, match=r"data\.classes") as caught:
        image_folder.list_splits(folder_config(tmp_path, classes=3))
    assert caught.value.code == 65


def test_an_image_that_vanishes_later_is_an_input_failure(tmp_path: Path) -> None:
    write_image(tmp_path / "ant/0.png").with_name("1.png").write_bytes((tmp_path / "ant/0.png").read_bytes())
    write_image(tmp_path / "bee/0.png").with_name("1.png").write_bytes((tmp_path / "bee/0.png").read_bytes())
    training = registry.open_splits(folder_config(tmp_path, val_fraction=0.5)).training
    Path(training.names(np.array([0]))[0]).unlink()
    with pytest.raises(Failure, match="it is gone"):
        training.read(np.array([0]))


VIDEO = r"video_(\d+)"


def write_videos(root: Path, **videos: list[int]) -> Path:
    """root/CLASS/video_N/, three frames of each video."""
    for label, (name, numbers) in enumerate(videos.items()):
        for number in numbers:
            for frame in range(3):
                write_image(root / name / f"video_{number}" / f"{frame}.png", 50 * label + 3 * number + frame)
    return root


def videos(files: SampleSource) -> set[str]:
    return {Path(path).parent.name for path in files.file_names or ()}


def test_a_video_is_on_one_side_though_both_classes_have_it(tmp_path: Path) -> None:
    write_videos(tmp_path, ant=[0, 1, 2, 3, 4], bee=[3, 4, 5, 6, 7])
    splits = image_folder.list_splits(folder_config(tmp_path, group=VIDEO, val_fraction=0.3))
    assert not videos(splits.training) & videos(splits.validation)
    assert np.bincount(splits.validation.labels).min() >= 3
    assert splits.notes == ("val: 9 of 30 images in 2 of 8 groups (data.val_fraction asks for 9 images)",)


def test_a_pattern_does_not_match_the_folders_above_the_classes(tmp_path: Path) -> None:
    write_videos(tmp_path / "video_9", ant=[0, 1], bee=[0, 1])
    splits = image_folder.list_splits(folder_config(tmp_path / "video_9", group=VIDEO, val_fraction=0.5))
    assert len(videos(splits.validation)) == 1


def test_without_groups_nothing_needs_to_be_said(tmp_path: Path) -> None:
    write_videos(tmp_path, ant=[0, 1], bee=[0, 1])
    assert image_folder.list_splits(folder_config(tmp_path)).notes == ()


def test_with_two_folders_every_group_is_on_one_side(tmp_path: Path) -> None:
    write_videos(tmp_path / "train", ant=[0, 1], bee=[0, 1])
    write_videos(tmp_path / "val", ant=[2], bee=[3])
    assert len(image_folder.list_splits(folder_config(tmp_path, group=VIDEO)).validation.paths) == 6


BAD_GROUPS: dict[str, tuple[dict[str, list[int]], dict[str, list[int]], str, str]] = {
    "in both splits": ({"ant": [0, 1], "bee": [1]}, {"ant": [1], "bee": [2]}, VIDEO, "found: 1\n"),
    "no match": ({"ant": [0], "bee": [1]}, {}, "clip", "ant/video_0/0.png, and others"),
    "no match in the validation split": (
        {"ant": [0], "bee": [1]},
        {"ant": [2], "bee": [3]},
        "_[01]",
        "ant/video_2/0.png",
    ),
    "one group": ({"ant": [5], "bee": [5]}, {}, VIDEO, "6 images of 5"),
    "a group for each class": ({"ant": [0], "bee": [1]}, {}, VIDEO, "trained on"),
}


@pytest.mark.parametrize(("training", "validation", "pattern", "problem"), BAD_GROUPS.values(), ids=BAD_GROUPS.keys())
def test_groups_that_cannot_be_kept_apart_are_bad_data(
    tmp_path: Path, training: dict[str, list[int]], validation: dict[str, list[int]], pattern: str, problem: str
) -> None:
    write_videos(tmp_path / "train", **training)
    write_videos(tmp_path / "val", **validation)
    with pytest.raises(Failure) as caught:
        image_folder.list_splits(folder_config(tmp_path if validation else tmp_path / "train", group=pattern))
    assert caught.value.code == 65
    assert problem in str(caught.value)


def of_one_list(root: Path) -> DataConfig:
    write_classes(root, ant=10, bee=15)
    (root / "ant/notes.txt").touch()
    return folder_config(root)


def with_three_splits(root: Path) -> DataConfig:
    write_classes(root / "train", ant=5, bee=6)
    write_classes(root / "val", ant=2, bee=1)
    write_classes(root / "test", bee=3)
    os.rename(root / "train/ant/001.png", os.fsencode(root / "train/ant") + b"/\xe9.png")
    return folder_config(root)


def without_validation_images(root: Path) -> DataConfig:
    write_classes(root, ant=4, bee=4)
    return folder_config(root, val_fraction=0.0)


def in_groups(root: Path) -> DataConfig:
    write_videos(root, ant=[0, 1, 2, 3, 4], bee=[3, 4, 5, 6, 7])
    return folder_config(root, group=VIDEO, val_fraction=0.3, test_fraction=0.2)


def with_a_class_that_is_too_small(root: Path) -> DataConfig:
    write_classes(root, ant=20, bee=1)
    write_image(root / "ant/bee/0.png")
    write_image(root / "ant/ant/0.png")
    return folder_config(root, val_fraction=0.1)


def summary(splits: DataSplits, root: str) -> dict[str, Any]:
    """All that a training takes from the splits but their pixels."""
    sources = {"training": splits.training, "validation": splits.validation, "test": splits.test}
    files = {
        name: ([*source.paths], source.labels.tolist(), source.labels.dtype, source.stored)
        for name, source in sources.items()
        if isinstance(source, ImageFileSource)
    }
    assert len(files) == 2 + (splits.test is not None)
    fingerprint = statistics.data_fingerprint(splits, root)
    return {"files": files, "notes": splits.notes, "warnings": splits.warnings, "fingerprint": fingerprint}


LAYOUTS = (
    of_one_list,
    with_three_splits,
    without_validation_images,
    in_groups,
    with_a_class_that_is_too_small,
)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("nodes", [[0, 0, 0], [0, 1, 0, 1], [0, 1]], ids=str)
def test_every_rank_gets_the_splits_of_one_rank(
    tmp_path: Path, layout: Callable[[Path], DataConfig], nodes: list[int]
) -> None:
    config = layout(tmp_path)
    alone = summary(registry.open_splits(config), config.root)
    ranks = together(lambda host: summary(registry.open_splits(config, host), config.root), nodes)
    assert ranks == [alone] * len(nodes)


def test_the_first_rank_of_each_machine_lists_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, listing_ranks = of_one_list(tmp_path), []
    list_splits = image_folder.list_splits

    def counted(folder_config: DataConfig, cache: ListingCache) -> DataSplits:
        listing_ranks.append(cache.is_writer)
        return list_splits(folder_config, cache)

    monkeypatch.setattr(image_folder, "list_splits", counted)
    together(lambda host: registry.open_splits(config, host), [0, 0, 1, 1])
    assert sorted(listing_ranks) == [False, True]  # of two machines; rank 0 alone writes the user's cache


def test_a_folder_that_one_machine_does_not_see_ends_all_ranks_and_names_that_machine(tmp_path: Path) -> None:
    config = of_one_list(tmp_path)
    other = folder_config(tmp_path / "gone")

    def run(host: HostRanks) -> tuple[str, str | None]:
        with pytest.raises(Failure) as caught:
            registry.open_splits(other if host.node else config, host)
        return caught.value.what, caught.value.found

    with pytest.raises(Failure) as alone:
        registry.open_splits(other)
    expected = (alone.value.what, f"{alone.value.found} (on {socket.gethostname()})")
    assert together(run, [0, 0, 1, 1]) == [expected] * 4


def test_ranks_that_cannot_share_memory_have_the_same_splits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = of_one_list(tmp_path)
    alone = summary(registry.open_splits(config), config.root)
    monkeypatch.setattr(shared_memory, "_create_memory_file", lambda *_: None)
    ranks = together(lambda host: summary(registry.open_splits(config, host), config.root), [0, 0])
    assert ranks == [alone] * 2


def test_images_of_a_shared_list_are_read(tmp_path: Path) -> None:
    config = of_one_list(tmp_path)
    alone = registry.open_splits(config).training.read(np.arange(20))
    for splits in together(lambda host: registry.open_splits(config, host), [0, 0]):
        assert splits.training.read(np.arange(20)).equal(alone)


def make(root: Path, *names: str) -> DataConfig:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return DataConfig(name="folder", root=str(root), val_fraction=0.5)


def summary_of(data: DataConfig) -> DataSummary:
    """What `train check` says."""
    return registry.summarize(data, image_folder.list_splits(data))


def test_a_folder_without_splits_is_split(tmp_path: Path) -> None:
    data = make(tmp_path, "cat/1.jpg", "cat/2.jpg", "dog/1.png", "dog/2.png")
    described = summary_of(data)
    words = "samples of 32 x 32 x 3, 2 classes (cat, dog): 2 for training, 2 for validation"
    assert described.description == f"folder ({data.root}), {words}"
    assert described.notes == ()


def test_both_sides_are_counted_where_there_are_two(tmp_path: Path) -> None:
    sides = [f"{side}/{name}/1.jpg" for side in ("train", "val") for name in ("cat", "dog")]
    assert "3 for training, 2 for validation" in summary_of(make(tmp_path, *sides, "train/cat/2.jpg")).description


def test_a_folder_that_is_not_read_is_named(tmp_path: Path) -> None:
    data = make(tmp_path, *(f"{side}/{name}/1.jpg" for side in ("train", "val", "dev") for name in ("cat", "dog")))
    assert summary_of(data).notes == ("not read, beside train (training) and val (validation): dev",)


def test_a_folder_test_that_chooses_the_checkpoint_is_named(tmp_path: Path) -> None:
    data = make(tmp_path, *(f"{side}/{name}/1.jpg" for side in ("train", "test") for name in ("cat", "dog")))
    (note,) = summary_of(data).notes
    assert note.startswith("test is the validation split, since there is no folder val: it chooses the best checkpoint")


def test_a_test_folder_is_counted(tmp_path: Path) -> None:
    sides = [f"{side}/{name}/1.jpg" for side in ("train", "val", "test") for name in ("cat", "dog")]
    data = make(tmp_path, *sides, "test/dog/2.jpg")
    described, real = summary_of(data), image_folder.list_splits(data)
    assert described.notes == ()
    assert real.test is not None
    assert real.test.labels.tolist() == [0, 1, 1]
    assert "2 for training, 2 for validation, 3 for the test at the end" in described.description


@pytest.mark.parametrize("keys", [{"test_fraction": 0.2}, {"fold": "2/3"}, {"fold": "3/3", "test_fraction": 0.1}])
@pytest.mark.parametrize("group", [None, r"\d"])
def test_every_image_is_in_one_split(tmp_path: Path, keys: dict[str, Any], group: str | None) -> None:
    make(tmp_path, *(f"{name}/{i}-{k}.jpg" for name in ("a", "b") for i in range(9) for k in range(3)))
    data = DataConfig(name="folder", root=str(tmp_path), group=group, **keys)
    splits = registry.open_splits(data)
    sources = [source for source in (splits.training, splits.validation, splits.test) if source is not None]
    names = [name for source in sources for name in source.names(np.arange(len(source.labels)))]
    assert len({*names}) == len(names) == 54
    assert (splits.test is not None) == ("test_fraction" in keys)


@pytest.mark.parametrize("validation", ["val", "test"])
def test_a_folder_of_validation_images_is_told_from_a_part_of_the_training_images(
    tmp_path: Path, validation: str
) -> None:
    data = make(tmp_path, *(f"train/{name}/{i}.jpg" for name in ("a", "b") for i in range(4)))
    assert not image_folder.list_splits(data).has_own_validation
    make(tmp_path, *(f"{validation}/{name}/1.jpg" for name in ("a", "b")))
    assert image_folder.list_splits(data).has_own_validation


def test_folds_leave_a_folder_test_beside_train_for_the_end(tmp_path: Path) -> None:
    make(tmp_path, *(f"train/{name}/{i}.jpg" for name in ("a", "b") for i in range(5)), "test/a/1.jpg", "test/b/1.jpg")
    data = DataConfig(name="folder", root=str(tmp_path), fold="1/5")
    real = image_folder.list_splits(data)
    assert (len(real.training.labels), len(real.validation.labels)) == (8, 2)
    assert real.test is not None


def test_folds_beside_a_validation_folder_are_refused(tmp_path: Path) -> None:
    make(tmp_path, *(f"{side}/{name}/1.jpg" for side in ("train", "val") for name in ("a", "b")))
    with pytest.raises(Failure, match=r"data\.fold does not go with validation images of their own") as caught:
        summary_of(DataConfig(name="folder", root=str(tmp_path), fold="1/5"))
    assert caught.value.code == ExitCode.USAGE


def test_a_group_in_the_test_folder_and_in_another_one_is_refused(tmp_path: Path) -> None:
    sides = [f"{side}/{name}/{side}-1.jpg" for side in ("train", "val", "test") for name in ("a", "b")]
    make(tmp_path, *sides, "train/a/test-2.jpg")
    data = DataConfig(name="folder", root=str(tmp_path), group=r"(\w+)-")
    with pytest.raises(Failure, match="1 groups are in both splits, training and test"):
        image_folder.list_splits(data)


def test_what_looks_like_a_slip_is_warned_of(tmp_path: Path) -> None:
    parts = ["test/cat/1.jpg", "test/dog/1.jpg"]
    data = make(tmp_path, "cat/1.jpg", "ship/1.jpg", *(f"dog/{i}.jpg" for i in range(9)), *parts, "dog/note.txt")
    described = summary_of(data)
    assert ["test holds folders" in described.warnings[0], "none is used for validation" in described.warnings[1]] == [
        True,
        True,
    ]
    assert described.notes == ("1 file is not read: .txt (1)",)


def test_the_thumbnails_of_a_file_server_are_no_images(tmp_path: Path) -> None:
    photos = [f"{name}/{number}.png" for name in ("cat", "dog") for number in range(4)]
    thumbnails = [f"{Path(photo).parent}/@eaDir/{Path(photo).name}/SYNOPHOTO_THUMB_SM.jpg" for photo in photos]
    data = make(tmp_path, *photos, *thumbnails)
    splits = image_folder.list_splits(data)
    assert len(splits.training.labels) + len(splits.validation.labels) == 8
    assert splits.notes == ("2 files are not read: folder @eaDir (2)",)


def test_folders_of_sites_are_warned_of(tmp_path: Path) -> None:
    sites = [f"{site}/{name}/{i}.jpg" for site in ("alps", "eifel") for name in ("deer", "fox") for i in range(5)]
    data = make(tmp_path, *sites)
    (warning,) = summary_of(data).warnings
    assert "are these the classes?" in warning


@pytest.mark.parametrize("fraction", [0, 0.5])
def test_nothing_is_missed_where_no_or_enough_images_are_for_validation(fraction: float, tmp_path: Path) -> None:
    make(tmp_path, *(f"{name}/{i}.jpg" for name in ("a", "b") for i in range(2)))
    data = DataConfig(name="folder", root=str(tmp_path), val_fraction=fraction)
    assert summary_of(data).warnings == ()


def test_files_that_are_not_read_are_named_by_ending_the_commonest_first(tmp_path: Path) -> None:
    others = [f"cat/{i}.txt" for i in range(3)] + ["dog/1.HEIC", "dog/deep/2.heic", "dog/LICENSE", "dog/.DS_Store"]
    (note,) = summary_of(make(tmp_path, "cat/1.jpg", "dog/1.jpg", *others)).notes
    assert note.startswith("7 files are not read: .txt (3), .heic (2), hidden files (1), no ending (1)")
    assert "fix: save pictures of other kinds as .jpg or .png" in note


def test_images_beside_the_class_folders_are_not_read_either(tmp_path: Path) -> None:
    (note,) = summary_of(make(tmp_path, "cat/1.jpg", "dog/1.jpg", "lost.jpg", "labels.csv")).notes
    assert ".jpg beside the class folders (1)" in note
    assert ".csv (1)" in note
    assert "fix: move images into the folders of their classes" in note


def test_images_beside_the_folders_are_counted_on_both_sides_and_above_them(tmp_path: Path) -> None:
    sides = [f"{side}/{name}/1.jpg" for side in ("train", "val") for name in ("cat", "dog")]
    (note,) = summary_of(make(tmp_path, *sides, "a.jpg", "train/b.jpg", "val/c.jpg")).notes
    assert ".jpg beside the class folders (3)" in note


def test_a_folder_that_goes_while_it_is_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make(tmp_path / "pets", "cat/1.jpg", "dog/1.jpg")
    listed = image_folder.list_class_folders

    def list_what_is_gone(above: Path, classes: Sequence[str]) -> image_folder.FolderListing:
        shutil.rmtree(tmp_path / "pets")
        return listed(above, classes)

    monkeypatch.setattr(image_folder, "list_class_folders", list_what_is_gone)
    with pytest.raises(Failure, match="cannot be read: No such file") as caught:
        summary_of(data)
    assert caught.value.code == ExitCode.NO_INPUT


def test_many_kinds_of_files_make_no_long_line(tmp_path: Path) -> None:
    (note,) = summary_of(make(tmp_path, "cat/1.jpg", "dog/1.jpg", *(f"cat/x.e{i}" for i in range(300)))).notes
    assert note == "300 files are not read: .e0 (1), .e1 (1), .e10 (1), .e100 (1), .e101 (1) and 295 more"


def test_an_ending_that_is_none_for_people_is_not_shown(tmp_path: Path) -> None:
    (note,) = summary_of(make(tmp_path, "cat/1.jpg", "dog/1.jpg", "cat/x.\x1b[2J", f"cat/x.{'y' * 99}")).notes
    assert note == "2 files are not read: another ending (2)"


def test_a_class_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="without an image: 1"):
        summary_of(make(tmp_path, "cat/1.jpg", "dog/1.heic"))


def test_names_of_classes_break_no_line_and_make_none_long(tmp_path: Path) -> None:
    names = ("new\nline", "\x1b[31mred", "x" * 240, "猫", "😀")
    row = summary_of(make(tmp_path, *(f"{name}/1.jpg" for name in names))).description
    assert row.isprintable()
    assert "\\x1b[31mred, new\\nline" in row
    assert f"{'x' * 39}…, 猫, 😀" in row


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
