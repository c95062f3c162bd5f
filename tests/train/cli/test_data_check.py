"""All samples of the configured data, read once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from images import write_classes

from entrypoint import Failure
from train.cli import data_check
from train.cli.data_check import DataFindings
from train.config import load
from train.config.load import keep_last_overrides


def checked(*settings: str) -> tuple[DataFindings, list[str]]:
    told: list[str] = []
    return data_check.check_samples(
        load.load_config(None, settings), config_file=None, report_progress=told.append
    ), told


def folder(root: Path, *settings: str) -> DataFindings:
    return checked(*keep_last_overrides(["data.name=folder", f"data.root={root}", "data.image_size=8", *settings]))[0]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_classes(tmp_path / "train", ant=6, bee=4)
    write_classes(tmp_path / "val", cat=0, ant=2, bee=2)
    (tmp_path / "val" / "cat").rmdir()
    return tmp_path


def test_all_samples_of_both_sides_are_read_and_told() -> None:
    found, told = checked("data.samples=50", "data.image_size=8")
    assert ([split.samples for split in found.splits], found.failure) == ([40, 10], None)
    assert told[-1] == "50 of 50 samples read"


def test_clips_are_read_too() -> None:
    found, _ = checked("data.samples=20", "data.image_size=8", "data.frames=3", "data.classes=4")
    assert list(found.splits[0].sizes) == [(8, 8, 3)]


def test_a_folder_is_looked_at_file_by_file(root: Path) -> None:
    found = folder(root)
    assert [split.samples for split in found.splits] == [10, 4]
    assert f"folder ({root}): 2 classes" in found.as_text()
    assert json.loads(found.as_json())["training"]["per_class"] == {"ant": 6, "bee": 4}


def test_a_file_that_is_no_image_is_bad_data(root: Path) -> None:
    (root / "val/bee/000.png").write_bytes(b"no image")
    failure = folder(root).failure
    assert failure is not None
    assert str(root / "val/bee/000.png") in str(failure)


def test_broken_files_are_named_though_training_may_skip_them(root: Path) -> None:
    (root / "train/ant/000.png").write_bytes(b"no image")
    assert folder(root, "data.max_bad_images=5").failure is not None


def test_a_training_image_in_the_validation_split_is_leakage(root: Path) -> None:
    shutil.copy(root / "train/ant/005.png", root / "val/bee/new.png")
    failure = folder(root).failure
    assert failure is not None
    assert f"{root}/val/bee/new.png = {root}/train/ant/005.png (of another class!)" in str(failure)


def test_a_test_image_in_the_validation_split_is_leakage(root: Path) -> None:
    write_classes(root / "test", ant=3, bee=2)
    shutil.copy(root / "val/ant/001.png", root / "test/ant/new.png")
    (root / "test/bee/000.png").write_bytes(b"no image")
    found = folder(root)
    *_, test = found.splits
    assert (test.name, test.samples, test.read) == ("test", 6, 5)
    leaked = [(test.name_of(leak.sample), leak.other.name) for leak in test.leaked]
    assert (f"{root}/test/ant/new.png", "validation") in leaked
    assert found.failure is not None
    assert json.loads(found.as_json())["test"]["per_class"] == {"ant": 4, "bee": 2}


def test_the_split_s_own_copies_are_found(tmp_path: Path) -> None:
    write_classes(tmp_path, ant=5, bee=5)
    for number in range(20):
        shutil.copy(tmp_path / "ant/000.png", tmp_path / f"ant/copy{number}.png")
    assert folder(tmp_path).splits[1].leaked


def test_small_images_are_counted_against_image_size(root: Path) -> None:
    assert len(folder(root, "data.image_size=9").splits[0].problems["small"]) == 10


def test_notes_of_the_split_and_unequal_classes_are_shown(tmp_path: Path) -> None:
    write_classes(tmp_path, ant=40, bee=10)
    shown = folder(tmp_path, "data.group=\\d+", "data.val_fraction=0.2").as_text()
    assert "note: val: 10 of 50 images in" in shown
    assert "weight, if optim.class_weights=balanced" in shown


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        (("data.name=folder", "data.root=nowhere"), 66),
        (("data.name=folder", "data.root=."), 66),
        (("data.name=folder", "data.root=.", "data.classes=3"), 66),
    ],
)
def test_what_cannot_be_opened_cannot_be_checked(
    tmp_path: Path, settings: tuple[str, ...], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Failure) as caught:
        checked(*settings)
    assert caught.value.code == code
