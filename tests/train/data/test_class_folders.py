"""A folder of class folders has a layout, and what is beside its images is said."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from entrypoint import ExitCode, Failure
from train.data import class_folders, image_folder
from train.data.class_folders import OUTSIDE_CLASS_FOLDERS, FolderLayout


def make(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def count(root: Path, classes: tuple[str, ...], unread: Counter[str] | None = None) -> int:
    """The images of these classes; refuses empty ones. unread: counts the other files by ending."""
    listing = image_folder.list_class_folders(root, classes)
    class_folders.refuse_empty_classes(root, dict(zip(classes, listing.counts, strict=True)), listing.unread)
    if unread is not None:
        unread.update(listing.unread)
    return sum(listing.counts)


def test_class_folders_alone_have_no_validation_folder(tmp_path: Path) -> None:
    make(tmp_path, "b/1.jpg", "a/1.jpg", ".cache/1.jpg", "readme.txt")
    layout = class_folders.find_layout(tmp_path)
    assert layout == class_folders.FolderLayout(training=tmp_path, validation=None, classes=("a", "b"))


@pytest.mark.parametrize("name", ["val", "test"])
def test_a_folder_beside_train_is_for_validation(tmp_path: Path, name: str) -> None:
    make(tmp_path, "train/a/1.jpg", "train/b/1.jpg", f"{name}/a/1.jpg", f"{name}/b/1.jpg")
    layout = class_folders.find_layout(tmp_path)
    assert (layout.training, layout.validation) == (tmp_path / "train", tmp_path / name)


SPLITS = {  # folders that hold both classes -> training, validation, folders that are not read
    "capitals": (("Train", "Test"), "Train", "Test", ()),
    "loud": (("TRAIN", "VAL"), "TRAIN", "VAL", ()),
    "longer": (("Training", "Testing"), "Training", "Testing", ()),
    "two-to-validate": (("train", "Dev", "val"), "train", "val", ("Dev",)),
    "no-validation": (("training", "photos"), "training", None, ("photos",)),
    "both-cases": (("Train", "train", "Test", "test"), "train", "test", ("Test", "Train")),
}


@pytest.mark.parametrize(("names", "training", "validation", "aside"), SPLITS.values(), ids=SPLITS)
def test_sides_are_known_by_their_names_in_any_case(
    tmp_path: Path, names: tuple[str, ...], training: str, validation: str | None, aside: tuple[str, ...]
) -> None:
    layout = class_folders.find_layout(make(tmp_path, *(f"{split}/{name}/1.jpg" for split in names for name in "ab")))
    assert (layout.training, layout.classes) == (tmp_path / training, ("a", "b"))
    assert (layout.validation, layout.aside) == (tmp_path / validation if validation else None, aside)


TESTS = {  # folders that hold both classes -> validation, test
    "all-three": (("train", "test", "val"), "val", "test"),
    "development": (("train", "Dev", "testing"), "Dev", "testing"),
    "no-validation": (("train", "test"), "test", None),
    "two": (("train", "testing", "test", "val"), "val", "test"),
}


@pytest.mark.parametrize(("names", "validation", "test"), TESTS.values(), ids=TESTS)
def test_a_test_folder_is_kept_for_the_end_where_another_one_validates(
    tmp_path: Path, names: tuple[str, ...], validation: str, test: str | None
) -> None:
    layout = class_folders.find_layout(make(tmp_path, *(f"{split}/{name}/1.jpg" for split in names for name in "ab")))
    assert (layout.validation, layout.test) == (tmp_path / validation, tmp_path / test if test else None)


@pytest.mark.parametrize("inside", ["1.jpg", "unknown/1.jpg"])
def test_test_images_without_labels_are_not_read(tmp_path: Path, inside: str) -> None:
    make(tmp_path, *(f"{split}/{name}/1.jpg" for split in ("train", "val") for name in "ab"), f"test/{inside}")
    layout = class_folders.find_layout(tmp_path)
    assert (layout.test, layout.aside) == (None, ("test",))


@pytest.mark.parametrize("names", [("bus", "Train"), ("Training", "resting"), ("test", "control")])
def test_a_class_may_be_called_as_a_side(tmp_path: Path, names: tuple[str, ...]) -> None:
    layout = class_folders.find_layout(make(tmp_path, *(f"{name}/1.jpg" for name in names)))
    assert (layout.training, layout.classes) == (tmp_path, tuple(sorted(names)))


@pytest.mark.parametrize("names", [("val", "test"), ("Dev", "TEST", "Valid")])
def test_sides_without_one_to_train_on_are_no_classes(tmp_path: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(Failure, match="and none to train on") as caught:
        class_folders.find_layout(make(tmp_path, *(f"{split}/{name}/1.jpg" for split in names for name in "ab")))
    assert caught.value.code == ExitCode.NO_INPUT
    assert f"call the folder to train on {tmp_path}/train" in caught.value.fix


def test_two_folders_to_train_on_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="more than one folder to train on") as caught:
        class_folders.find_layout(
            make(tmp_path, *(f"{split}/{name}/1.jpg" for split in ("Train", "Training") for name in "ab"))
        )
    assert caught.value.found == f"Train, Training, in {tmp_path}"


def test_images_that_are_not_sorted_are_not_two_classes(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="1 image directly in it"):
        class_folders.find_layout(make(tmp_path, "Train/1.jpg", "Test/2.jpg"))


def test_a_folder_of_other_classes_beside_the_sides_is_told(tmp_path: Path) -> None:
    make(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "more/owl/3.jpg", "runs/r/log.txt")
    assert class_folders.find_layout(tmp_path).aside == ("more",)


def test_masks_beside_their_images_are_warned_of(tmp_path: Path) -> None:
    names = [f"a/scan ({n}){ending}" for n in range(4) for ending in (".png", "_mask.png", "_mask_1.png")]
    paths = [str(tmp_path / name) for name in names]
    make(tmp_path, *names)
    (warning,) = class_folders.mask_warnings(paths)
    assert f"({paths[1]})" in warning


@pytest.mark.parametrize("names", [["a/with_mask.jpg", "a/no_mask.jpg"], ["a/face.jpg", "a/face_mask.jpg", "a/2.jpg"]])
def test_images_that_show_masks_are_none(names: list[str], tmp_path: Path) -> None:
    make(tmp_path, *names)
    assert class_folders.mask_warnings([str(tmp_path / name) for name in names]) == ()


def test_folders_beside_the_sides_that_hold_no_images_are_not_told(tmp_path: Path) -> None:
    make(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "a/2.jpg", "more/3.jpg", "runs/log.txt", ".cache/4.jpg")
    assert class_folders.find_layout(tmp_path).aside == ("a", "more")


def test_val_comes_before_test(tmp_path: Path) -> None:
    make(tmp_path, *(f"{split}/{name}/1.jpg" for split in ("train", "test", "val") for name in "ab"))
    assert class_folders.find_layout(tmp_path).validation == tmp_path / "val"


def test_images_are_counted_and_other_files_are_not(tmp_path: Path) -> None:
    make(tmp_path, "a/1.JPG", "a/deep/2.png", "a/labels.txt", "b/3.webp")
    assert count(tmp_path, ("a", "b")) == 3


HIDDEN = ("a/.ipynb_checkpoints/0-checkpoint.png", "a/deep/.snapshot/0.png", "a/._0.png", "b/.nfs0001.png")


def test_hidden_images_are_no_images(tmp_path: Path) -> None:
    make(tmp_path, "a/0.png", "b/1.jpg", *HIDDEN)
    listing = image_folder.list_class_folders(tmp_path, ("a", "b"))
    assert (listing.counts, listing.inside["a"]) == ((1, 1), ["deep"])
    assert listing.unread == {"folder .ipynb_checkpoints": 1, "folder .snapshot": 1, "hidden files": 2}


SYSTEM_FILES = (
    "a/@eaDir/0.png/SYNOPHOTO_THUMB_SM.jpg",
    "a/.thumbnails/0.png",
    "b/.AppleDouble/1.jpg",
    "b/deep/@eaDir/2.jpg",
    "#recycle/old/3.jpg",
    "__MACOSX/a/._0.png",
    "lost+found/4.jpg",
    "$RECYCLE.BIN/5.jpg",
    "b/._1.jpg",
    "._6.jpg",
    "b/.DS_Store",
    "a/Thumbs.db",
)


def test_files_of_a_file_server_are_skipped_and_counted(tmp_path: Path) -> None:
    make(tmp_path, "a/0.png", "b/1.jpg", *SYSTEM_FILES)
    layout, unread = class_folders.find_layout(tmp_path), Counter[str]()
    assert (layout.classes, count(tmp_path, layout.classes, unread)) == (("a", "b"), 2)
    class_folders.count_files_outside_classes(tmp_path, layout, unread)
    server = {f"folder {name}": 1 for name in ("#recycle", "__MACOSX", "lost+found", "$RECYCLE.BIN")}
    inside = {"folder @eaDir": 2, "folder .thumbnails": 1, "folder .AppleDouble": 1}
    assert unread == server | inside | {"hidden files": 3, ".db": 1}
    note = class_folders.describe_unread_files(unread)
    assert note is not None
    assert note.startswith("12 files are not read: hidden files (3), folder @eaDir (2)")


@pytest.mark.parametrize("ending", [".jfif", ".jpe", ".JFIF", ".avif", ".pbm"])
def test_every_ending_of_a_format_that_is_read_is_an_image(ending: str) -> None:
    assert class_folders.is_image(f"0{ending}")


def test_a_class_of_other_files_alone_names_their_endings(tmp_path: Path) -> None:
    make(tmp_path, "a/0.png", *(f"b/{number}.heic" for number in range(8)))
    with pytest.raises(Failure) as caught:
        count(tmp_path, ("a", "b"))
    assert caught.value.found == f"b, in {tmp_path}; 8 files are not read: .heic (8)"
    assert caught.value.fix.startswith(
        f"set data.root to a folder of class folders alone, move those that are no classes out of {tmp_path}, "
        "or save pictures of other kinds as .jpg or .png"
    )


@pytest.mark.parametrize(("name", "source"), [("photos.csv", "table"), ("photos.TSV", "table"), ("photos.npz", "npz")])
def test_a_file_of_another_source_names_that_source(name: str, source: str, tmp_path: Path) -> None:
    make(tmp_path, name)
    with pytest.raises(Failure) as caught:
        class_folders.find_layout(tmp_path / name)
    assert caught.value.fix.startswith(f"set data.name={source}")


@pytest.mark.parametrize(
    ("above", "fix"),
    [
        ("photos", "set data.root={}/photos: photos holds a, b"),
        ("my/photos", "set data.root={}/my/photos: photos holds a, b"),
        ("train/photos", "move the folders in {}/train/photos to {}/train: photos holds a, b"),
    ],
)
def test_a_folder_too_many_has_the_fix_that_fits(above: str, fix: str, tmp_path: Path) -> None:
    make(tmp_path, f"{above}/a/1.jpg", f"{above}/b/1.jpg", "readme.txt")
    with pytest.raises(Failure, match="fewer than two class folders") as caught:
        class_folders.find_layout(tmp_path)
    assert caught.value.fix == fix.replace("{}", str(tmp_path))


VALIDATION_FIXES = {
    "class-missing": (("val/a/1.jpg",), "put images to measure into {}/val/b; or move {}/val out of data.root"),
    "class-too-many": (("val/a/1.jpg", "val/b/1.jpg", "val/c/1.jpg"), "move {}/val/c out of val; or move {}/val out"),
    "no-classes": (("test/1.jpg", "test/2.jpg"), "move {}/test out of data.root: a part of the training images"),
}


@pytest.mark.parametrize(("files", "fix"), VALIDATION_FIXES.values(), ids=VALIDATION_FIXES)
def test_a_validation_folder_of_other_classes_has_the_fix_that_fits(
    files: tuple[str, ...], fix: str, tmp_path: Path
) -> None:
    make(tmp_path, "train/a/1.jpg", "train/b/1.jpg", *files)
    with pytest.raises(Failure, match="differ") as caught:
        class_folders.find_layout(tmp_path)
    assert caught.value.fix.startswith(fix.replace("{}", str(tmp_path)))


def test_classes_called_by_numbers_are_sorted_as_text_and_that_is_said() -> None:
    note = class_folders.describe_text_order(("1", "10", "11", "2"))
    assert note is not None
    assert note.startswith("the classes are sorted as text: 1, 10, 11, 2.")


@pytest.mark.parametrize("classes", [("01", "02", "10"), ("1", "2"), ("cat", "10"), ()])
def test_of_classes_in_the_order_of_their_numbers_nothing_is_said(classes: tuple[str, ...]) -> None:
    assert class_folders.describe_text_order(classes) is None


def test_what_python_makes_beside_a_users_code_is_no_class(tmp_path: Path) -> None:
    make(tmp_path, "a/0.png", "b/1.jpg", "__pycache__/mine.cpython-311.pyc")
    assert class_folders.find_layout(tmp_path).classes == ("a", "b")


def test_a_link_in_a_hidden_folder_is_not_followed(tmp_path: Path) -> None:
    make(tmp_path, "a/0.png")
    (tmp_path / "a" / ".again").symlink_to(tmp_path)
    assert count(tmp_path, ("a",)) == 1


def test_a_class_of_hidden_images_alone_is_empty(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="without an image: 1"):
        count(make(tmp_path, "a/0.png", "b/._0.png"), ("a", "b"))


def test_hidden_images_beside_the_classes_are_no_images_to_move(tmp_path: Path) -> None:
    make(tmp_path, "a/0.png", "b/1.jpg", "._x.png", "y.png")
    unread = Counter[str]()
    class_folders.count_files_outside_classes(tmp_path, class_folders.find_layout(tmp_path), unread)
    assert unread == {f".png{class_folders.OUTSIDE_CLASS_FOLDERS}": 1, "hidden files": 1}


def test_hidden_images_directly_in_the_root_are_not_counted(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="1 image directly in it"):
        class_folders.find_layout(make(tmp_path, "1.jpg", "._1.jpg"))


REFUSED = {
    "missing": ((), "nowhere", "cannot be read"),
    "file": (("nowhere",), "nowhere", "cannot be read"),
    "empty": (("readme.txt",), ".", "none"),
    "one-class": (("a/1.jpg",), ".", "a"),
    "other-classes": (("train/a/1.jpg", "train/b/1.jpg", "test/a/1.jpg", "test/c/1.jpg"), ".", "only in"),
}


@pytest.mark.parametrize(("files", "root", "problem"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_data_set_is_missing_input(files: tuple[str, ...], root: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        class_folders.find_layout(make(tmp_path, *files) / root)
    assert caught.value.code == ExitCode.NO_INPUT
    assert problem in str(caught.value)
    assert "data.root" in caught.value.fix


@pytest.mark.parametrize("root", ["photos/cat", "cat", "."])
def test_images_without_class_folders_are_told_with_the_folder_above(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working_folder, above = {"photos/cat": (".", "photos"), "cat": ("photos", "."), ".": ("photos/cat", "..")}[root]
    make(tmp_path, "photos/cat/1.jpg", "photos/cat/2.png", "photos/dog/3.jpg")
    monkeypatch.chdir(tmp_path / working_folder)
    with pytest.raises(Failure) as caught:
        class_folders.find_layout(Path(root))
    assert caught.value.found == f"{tmp_path}/photos/cat: none; 2 images directly in it"
    assert f"the folder above, data.root={above}, if this is one class" in caught.value.fix


def test_images_beside_each_other_in_train_are_to_be_sorted_there(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="1 image directly in it") as caught:
        class_folders.find_layout(make(tmp_path, "train/1.jpg"))
    assert caught.value.fix == f"make one folder for each class in {tmp_path}/train"


def test_a_class_without_images_is_named(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg", "b/readme.txt")
    with pytest.raises(Failure, match="without an image: 1") as caught:
        count(tmp_path, ("a", "b"))
    assert caught.value.found == f"b, in {tmp_path}; 1 file is not read: .txt (1)"


def test_a_relative_root_is_told_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Failure, match=r"data\.root cannot be read") as caught:
        class_folders.find_layout(Path("photos"))
    assert caught.value.found == f"{tmp_path}/photos"


def test_other_files_are_counted_by_ending_on_the_way(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg", "a/deep/2.TXT", "b/3.webp", "b/4.txt", "b/.hidden")
    others = Counter[str]()
    assert count(tmp_path, ("a", "b"), others) == 2
    assert others == {".txt": 2, "hidden files": 1}


def test_a_long_list_of_names_is_cut(tmp_path: Path) -> None:
    make(tmp_path, "train/a/1.jpg", "train/b/1.jpg", *(f"test/c{i}/1.jpg" for i in range(9)))
    with pytest.raises(Failure) as caught:
        class_folders.find_layout(tmp_path)
    assert caught.value.found is not None
    assert caught.value.found.endswith("c0, c1, c2, c3, c4 and 4 more")


def test_linked_folders_are_walked(tmp_path: Path) -> None:
    make(tmp_path, "a/1.png", "elsewhere/2.png")
    (tmp_path / "a" / "more").symlink_to(tmp_path / "elsewhere")
    assert [path.name for path in class_folders.image_files(tmp_path / "a", Counter())] == ["1.png", "2.png"]


@pytest.mark.parametrize("links", [{"a/up": "."}, {"a/self": "a"}, {"a/x": "b", "b/y": "a"}], ids=str)
def test_links_in_a_circle_are_refused(links: dict[str, str], tmp_path: Path) -> None:
    make(tmp_path, "a/1.png", "b/2.png")
    for link, target in links.items():
        (tmp_path / link).symlink_to(tmp_path / target)
    with pytest.raises(Failure, match="leads back") as caught:
        list(class_folders.image_files(tmp_path / "a", Counter()))
    assert caught.value.code == 66


def test_a_link_to_itself_is_named(tmp_path: Path) -> None:
    make(tmp_path, "a/1.jpg", "b/1.jpg")
    (tmp_path / "self").symlink_to("self")
    with pytest.raises(Failure, match="Too many levels") as caught:
        class_folders.find_layout(tmp_path)
    assert caught.value.found == str(tmp_path / "self")
    assert "mend the link" in caught.value.fix


def test_a_folder_in_a_class_that_cannot_be_read_is_refused_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "a/1.jpg", "a/deep/2.jpg")
    shut, real = str(tmp_path / "a/deep"), os.scandir

    def refusing(path: Any) -> Any:
        if os.fspath(path) == shut:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), shut)
        return real(path)

    monkeypatch.setattr(os, "scandir", refusing)
    with pytest.raises(Failure, match="cannot be read: Permission denied") as caught:
        list(class_folders.image_files(tmp_path / "a", Counter()))
    assert (caught.value.code, caught.value.found) == (ExitCode.NO_INPUT, shut)


def test_the_commonest_ending_comes_first_and_pictures_have_a_way_in() -> None:
    note = class_folders.describe_unread_files({".heic": 1, ".txt": 2})
    assert note is not None
    assert note.startswith("3 files are not read: .txt (2), .heic (1). fix: save pictures of other kinds as .jpg")
    assert "HEIC: `magick" in note


def test_lost_images_are_to_be_moved() -> None:
    note = class_folders.describe_unread_files({f".jpg{OUTSIDE_CLASS_FOLDERS}": 1})
    assert note == (
        "1 file is not read: .jpg beside the class folders (1). fix: move images into the folders of their classes"
    )


def test_nothing_beside_the_images_is_nothing_said() -> None:
    assert (class_folders.describe_unread_files({}), class_folders.split_folder_warnings({})) == (None, ())


def test_a_class_folder_of_classes_is_a_part_of_the_data() -> None:
    (warning,) = class_folders.split_folder_warnings(
        {"cat": [], "dog": ["big"], "ship": [], "test": ["cat", "dog", "ship"]}
    )
    assert warning.startswith(
        "the class folder test holds folders named like other classes (cat, dog, ship): a part of"
    )
    assert warning.endswith("fix: move it beside data.root, or the other class folders into data.root/train")


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
    (warning,) = class_folders.split_folder_warnings(inside)
    assert "hold folders of the same names" in warning
    assert fix in warning


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
    layout = FolderLayout(training=Path("d/Train"), validation=validation, classes=("a", "b"), aside=tuple("uvwxyz"))
    note = f"not read, beside Train (training) and {measured} (validation): u, v, w, x, y and 1 more"
    assert list(class_folders.layout_notes(layout)) == [note]


def test_nothing_beside_the_sides_is_nothing_said() -> None:
    layout = FolderLayout(training=Path("d"), validation=None, classes=("a", "b"))
    assert list(class_folders.layout_notes(layout)) == []


def test_a_validation_folder_among_the_classes_is_known_in_any_case() -> None:
    (warning,) = class_folders.split_folder_warnings({"cat": [], "dog": [], "Testing": ["cat", "dog"]})
    assert warning.endswith("or the other class folders into data.root/train")


def test_a_validation_folder_of_one_class_among_the_classes_is_named() -> None:
    (warning,) = class_folders.split_folder_warnings({"cat": [], "dog": [], "val": ["cat"]})
    assert warning.startswith("the class folder val holds folders named like other classes (cat): a part of the data")


@pytest.mark.parametrize("inside", [["dog"], ["cat", "dog"], ["left", "right"]])
def test_one_name_of_another_class_is_no_part(inside: list[str]) -> None:
    assert class_folders.split_folder_warnings({"cat": inside, "dog": []}) == ()


def test_many_classes_are_not_all_named() -> None:
    names = [f"c{i}" for i in range(9)]
    (warning,) = class_folders.split_folder_warnings({"more": names, **dict.fromkeys(names, ())})
    assert "(c0, c1, c2 and " in warning
    assert warning.endswith("fix: move it beside data.root")
