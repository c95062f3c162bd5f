"""What is in an image folder, counted; and what is said of it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data import image_folder, registry
from train.data.registry import DataSummary


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
    found = summary_of(data)
    words = "samples of 32 x 32 x 3, 2 classes (cat, dog): 2 for training, 2 for validation"
    assert found.description == f"folder ({data.root}), {words}"
    assert found.notes == ()


def test_both_sides_are_counted_where_there_are_two(tmp_path: Path) -> None:
    sides = [f"{side}/{name}/1.jpg" for side in ("train", "val") for name in ("cat", "dog")]
    assert "3 for training, 2 for validation" in summary_of(make(tmp_path, *sides, "train/cat/2.jpg")).description


def test_a_folder_that_is_not_read_is_named(tmp_path: Path) -> None:
    data = make(tmp_path, *(f"{side}/{name}/1.jpg" for side in ("train", "val", "dev") for name in ("cat", "dog")))
    assert summary_of(data).notes == ("not read, beside train (training) and val (validation): dev",)


def test_a_folder_test_that_chooses_the_checkpoint_is_named(tmp_path: Path) -> None:
    data = make(tmp_path, *(f"{side}/{name}/1.jpg" for side in ("train", "test") for name in ("cat", "dog")))
    (said,) = summary_of(data).notes
    assert said.startswith("test is the validation split, since there is no folder val: it chooses the best checkpoint")


def test_a_test_folder_is_counted(tmp_path: Path) -> None:
    sides = [f"{side}/{name}/1.jpg" for side in ("train", "val", "test") for name in ("cat", "dog")]
    data = make(tmp_path, *sides, "test/dog/2.jpg")
    found, real = summary_of(data), image_folder.list_splits(data)
    assert found.notes == ()
    assert real.test is not None
    assert real.test.labels.tolist() == [0, 1, 1]
    assert "2 for training, 2 for validation, 3 for the test at the end" in found.description


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
    found = summary_of(data)
    assert ["test holds folders" in found.warnings[0], "none is used for validation" in found.warnings[1]] == [
        True,
        True,
    ]
    assert found.notes == ("1 file is not read: .txt (1)",)


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
