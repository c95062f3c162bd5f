"""What is said of a folder of class folders beside its images."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.data import class_folders
from train.data.class_folders import OUTSIDE_CLASS_FOLDERS, FolderLayout


def test_the_commonest_ending_comes_first_and_pictures_have_a_way_in() -> None:
    told = class_folders.describe_unread_files({".heic": 1, ".txt": 2})
    assert told is not None
    assert told.startswith("3 files are not read: .txt (2), .heic (1). fix: save pictures of other kinds as .jpg")
    assert "HEIC: `magick" in told


def test_lost_images_are_to_be_moved() -> None:
    told = class_folders.describe_unread_files({f".jpg{OUTSIDE_CLASS_FOLDERS}": 1})
    assert told == (
        "1 file is not read: .jpg beside the class folders (1). fix: move images into the folders of their classes"
    )


def test_nothing_beside_the_images_is_nothing_said() -> None:
    assert (class_folders.describe_unread_files({}), class_folders.split_folder_warnings({})) == (None, ())


def test_a_class_folder_of_classes_is_a_part_of_the_data() -> None:
    (told,) = class_folders.split_folder_warnings(
        {"cat": [], "dog": ["big"], "ship": [], "test": ["cat", "dog", "ship"]}
    )
    assert told.startswith("the class folder test holds folders named like other classes (cat, dog, ship): a part of")
    assert told.endswith("fix: move it beside data.root, or the other class folders into data.root/train")


SITES = {
    "sites": ({"alps": ["deer", "fox"], "eifel": ["deer", "fox"]}, "deer/alps/ instead of alps/deer/"),
    "not-all-species": (
        {"alps": ["deer", "fox"], "eifel": ["fox", "owl"], "harz": ["deer", "owl"]},
        "data.group='^[^/]+/([^/]+)/' keeps each alps in one split",
    ),
    "splits-below": ({"cat": ["test", "train"], "dog": ["test", "train"]}, "test/cat/ instead of cat/test/"),
    "data-sets": ({"birds": ["train", "val"], "pets": ["train", "val"]}, "data.root to one of the class folders"),
}


@pytest.mark.parametrize(("inside", "fix"), SITES.values(), ids=SITES)
def test_class_folders_that_hold_the_same_names_are_warned_of(inside: dict[str, list[str]], fix: str) -> None:
    (told,) = class_folders.split_folder_warnings(inside)
    assert "hold folders of the same names" in told
    assert fix in told


@pytest.mark.parametrize(
    "inside",
    [
        {"cat": ["small"], "dog": ["small"]},
        {"cat": ["small", "big"], "dog": []},
        {"cat": ["video_1", "video_2"], "dog": ["video_2", "video_3"]},
    ],
)
def test_folders_below_the_classes_of_any_other_names_are_not_warned_of(inside: dict[str, list[str]]) -> None:
    assert class_folders.split_folder_warnings(inside) == ()


@pytest.mark.parametrize(
    ("validation", "measured"), [(Path("d/val"), "val"), (None, "a part of Train")], ids=["a-folder", "a-part"]
)
def test_folders_that_are_no_split_are_named(validation: Path | None, measured: str) -> None:
    found = FolderLayout(training=Path("d/Train"), validation=validation, classes=("a", "b"), aside=tuple("uvwxyz"))
    told = f"not read, beside Train (training) and {measured} (validation): u, v, w, x, y and 1 more"
    assert list(class_folders.layout_notes(found)) == [told]


def test_nothing_beside_the_sides_is_nothing_said() -> None:
    layout = FolderLayout(training=Path("d"), validation=None, classes=("a", "b"))
    assert list(class_folders.layout_notes(layout)) == []


def test_a_validation_folder_among_the_classes_is_known_in_any_case() -> None:
    (told,) = class_folders.split_folder_warnings({"cat": [], "dog": [], "Testing": ["cat", "dog"]})
    assert told.endswith("or the other class folders into data.root/train")


def test_a_validation_folder_of_one_class_among_the_classes_is_named() -> None:
    (told,) = class_folders.split_folder_warnings({"cat": [], "dog": [], "val": ["cat"]})
    assert told.startswith("the class folder val holds folders named like other classes (cat): a part of the data")


@pytest.mark.parametrize("inside", [["dog"], ["cat", "dog"], ["left", "right"]])
def test_one_name_of_another_class_is_no_part(inside: list[str]) -> None:
    assert class_folders.split_folder_warnings({"cat": inside, "dog": []}) == ()


def test_many_classes_are_not_all_named() -> None:
    names = [f"c{i}" for i in range(9)]
    (told,) = class_folders.split_folder_warnings({"more": names, **dict.fromkeys(names, ())})
    assert "(c0, c1, c2 and " in told
    assert told.endswith("fix: move it beside data.root")
