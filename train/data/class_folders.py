"""Finds the training and validation folders below `data.root`, their classes and their image files.

The paths are packed into one buffer of bytes, because each rank keeps those of millions of images.
This module does not import torch.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure, list_some
from train.files import did_you_mean, one_line
from train.names import describe_look_alikes, normalize_name, other_form_fix

# Formats that the image's Pillow reads. Other files (labels, licences, thumbnail databases) are no images.
IMAGE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jfif", ".jpe", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".pbm", ".pnm", ".tif", ".tiff"),
    *(".webp", ".avif"),
)
# Folders in which file servers, archives and Python keep what is theirs: thumbnails, deleted files, copies.
SYSTEM_FOLDERS: Final = frozenset(
    (
        "__pycache__",
        "__MACOSX",
        "@eaDir",
        "@Recycle",
        "@Recently-Snapshot",
        "#recycle",
        "#snapshot",
        "~snapshot",
        "$RECYCLE.BIN",
        "System Volume Information",
        "lost+found",
    )
)
SOURCES_OF_FILES: Final = {".csv": "table", ".tsv": "table", ".tab": "table", ".npz": "npz"}
_FIX_DATA_ROOT = "set data.root to the folder that holds the class folders (in a container: mount it)"
MAX_EXAMINED_FOLDERS: Final = 20  # of a folder beside the splits, which may hold thousands
MAX_SUFFIX_LENGTH = 9  # a longer ending is not listed by name
OUTSIDE_CLASS_FOLDERS = " beside the class folders"
HIDDEN_FILES = "hidden files"
# Names of the folders of the two splits, in any case. The first validation name that exists is used.
TRAINING_FOLDER_NAMES = ("train", "training")
TEST_FOLDER_NAMES = ("test", "testing")
VALIDATION_FOLDER_NAMES = ("val", "valid", "validation", "dev", *TEST_FOLDER_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderLayout:
    """Folders of class folders. validation is None if the validation images are split off the training images.

    Either `root/train/CLASS/` with `root/val/CLASS/` or `root/test/CLASS/`, or `root/CLASS/` alone.
    test: `root/test/` if it is not the validation folder; it may lack classes. aside: other folders in root that look
    like images, and are not read.
    """

    training: Path
    validation: Path | None
    classes: tuple[str, ...]
    aside: tuple[str, ...] = ()
    test: Path | None = None


def describe_text_order(classes: Sequence[str]) -> str | None:
    """A note if all classes are called by numbers, and sorted as text: 1, 10, 2; None otherwise."""
    if not all(name.isascii() and name.isdecimal() for name in classes) or [*classes] == sorted(classes, key=int):
        return None
    return (
        f"the classes are sorted as text: {list_some(classes)}. Labels in arrays, class weights in a list and the "
        "model's outputs are in this order; names such as 01 and 02 would sort as numbers"
    )


def find_layout(root: Path, *, keep_test: bool = False) -> FolderLayout:
    """Find the splits and the classes from the names of folders; files are not looked at.

    keep_test: a folder `test` is never taken for validation (data.fold, which takes it from the training images).

    Raises:
        Failure: NO_INPUT if the folder is missing, has no classes, if the classes of the splits differ, or if
            folders may be splits as well as classes.
    """
    paths = class_paths(root)
    folders = tuple(paths)
    training_name = _find_training_folder(root, folders)
    training = root if training_name is None else root / training_name
    classes = folders if training_name is None else class_names(training)
    if len(classes) < 2:
        raise _too_few_classes_failure(root, training, classes)
    if training_name is None:
        if all(name.lower() in VALIDATION_FOLDER_NAMES for name in classes):  # they would be trained on as classes
            raise _data_root_failure(
                "data.root holds folders to measure on, and none to train on",
                f"{root.absolute()}: {list_some(classes)}",
                f"call the folder to train on {root / TRAINING_FOLDER_NAMES[0]}; if these are classes, "
                "give them other names",
            )
        return FolderLayout(training=root, validation=None, classes=classes)
    kept = TEST_FOLDER_NAMES if keep_test else ()
    validation = _find_folder(root, folders, [name for name in VALIDATION_FOLDER_NAMES if name not in kept])
    if validation:
        _refuse_different_classes(training, classes, validation, class_names(validation))
    test = None if _is_test_folder(validation) else _find_folder(root, folders, TEST_FOLDER_NAMES)
    # Images without labels often lie in a folder `test`, in none of its folders or in one folder of any name.
    inside = set[str]() if test is None else {*class_names(test)}
    if not inside or inside - set(classes):
        test = None
    used = {training_name, *(folder.name for folder in (validation, test) if folder)}
    aside = tuple(name for name in folders if name not in used and _looks_like_image_folder(paths[name], classes))
    return FolderLayout(training=training, validation=validation, classes=classes, aside=aside, test=test)


def _find_training_folder(root: Path, names: Collection[str]) -> str | None:
    """The name of the training folder; None if the folders are classes.

    `Train` may be a class (a vehicle). It is the training folder if it holds folders, or if there is a validation
    folder too.
    """
    matches = [name for name in names if name.lower() in TRAINING_FOLDER_NAMES]
    if TRAINING_FOLDER_NAMES[0] in matches:
        return TRAINING_FOLDER_NAMES[0]
    paired = any(name.lower() in VALIDATION_FOLDER_NAMES for name in names)
    candidates = [name for name in matches if paired or class_names(root / name)]
    if len(candidates) > 1:
        actual = f"{list_some(candidates) or 'none'}, in {root.absolute()}"
        raise _data_root_failure(
            "data.root holds more than one folder to train on", actual, "leave one of them in data.root"
        )
    return candidates[0] if candidates else None


def _find_folder(root: Path, names: Collection[str], split_names: Sequence[str]) -> Path | None:
    """The first of `split_names` that exists; of `test` and `Test` the lower-case one."""
    matches = [name for name in names if name.lower() in split_names]
    matches.sort(key=lambda name: (split_names.index(name.lower()), name != name.lower()))
    return root / matches[0] if matches else None


def _is_test_folder(folder: Path | None) -> bool:
    return folder is not None and folder.name.lower() in TEST_FOLDER_NAMES


def _looks_like_image_folder(folder: Path, classes: tuple[str, ...]) -> bool:
    """By its name, or because it or a folder in it holds an image, or it a folder with the name of a class.

    Of its folders the first few are looked into.
    """
    names = {*classes, *TRAINING_FOLDER_NAMES, *VALIDATION_FOLDER_NAMES}
    if {normalize_name(folder.name), folder.name.lower()} & names:
        return True
    try:
        with os.scandir(folder) as listed:
            entries = [*listed]
        if any(normalize_name(entry.name) in classes or is_image(entry.name) for entry in entries):
            return True
        folders = islice((entry.path for entry in entries if entry.is_dir()), MAX_EXAMINED_FOLDERS)
        return any(any(map(is_image, os.listdir(path))) for path in folders)
    except OSError:  # nothing in it is needed
        return False


def _too_few_classes_failure(root: Path, training: Path, classes: tuple[str, ...]) -> Failure:
    """Also names images outside class folders: data.root is one folder too deep, or they are not sorted yet."""
    what, listed = f"data.root {root} has fewer than two class folders", ", ".join(classes) or "none"
    images = sum(map(is_image, list_entries(training, os.DirEntry.is_file)))
    if not images:
        inner, fix = training, _FIX_DATA_ROOT
        for _ in range(4):  # not endlessly: a folder may be a link to one above it
            if len(names := class_names(inner)) == 1:
                inner /= names[0]
        if len(names) > 1:
            fix = f"set data.root={inner}" if training == root else f"move the folders in {inner} to {training}"
            fix += f": {inner.name} holds {list_some(names)}"
        return _data_root_failure(what, f"{training.absolute()}: {listed}", fix)
    counted = f"{images:,} images" if images > 1 else "1 image"
    above = os.path.normpath(root / "..") if ".." not in root.parts else str(root.absolute() / "..")
    parent_fix = (
        f"give the folder above, data.root={above}, if this is one class of it; or " if training == root else ""
    )
    inside = "" if training == root else f" in {training}"
    fix = f"{parent_fix}make one folder for each class{inside}"
    return _data_root_failure(what, f"{training.absolute()}: {listed}; {counted} directly in it", fix)


def class_names(folder: Path) -> tuple[str, ...]:
    """The names of the class folders, in NFC and sorted, without hidden ones. Raises as `class_paths`."""
    return tuple(class_paths(folder))


def class_paths(folder: Path) -> dict[str, Path]:
    """The class folders by name, as `class_names`. On disk a name may have another Unicode form.

    Raises:
        Failure: NO_INPUT, where the folder cannot be listed; DATA for a name in two forms.
    """
    paths = dict[str, Path]()
    for entry in list_entries(folder, os.DirEntry.is_dir):
        path = paths.setdefault(normalize_name(entry), folder / entry)
        if path.name != entry:
            raise Failure(
                "two folders have one name, in two Unicode forms",
                found=f"{path.name!a} and {entry!a}, in {folder.absolute()}",
                fix="move the images of one into the other, and remove it",
                code=ExitCode.DATA,
            )
    return {name: paths[name] for name in sorted(paths) if not is_hidden(name)}


def list_entries(folder: Path, accepts: Callable[[os.DirEntry[str]], bool]) -> list[str]:
    """The names of the entries in `folder` that `accepts` returns true for, sorted.

    Raises:
        Failure: NO_INPUT if the folder cannot be listed, or an entry cannot be examined.
    """
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in entries if accepts(entry))
    except OSError as error:
        raise unreadable_folder_failure(error, folder) from error


def image_files(folder: Path, others: Counter[str]) -> Iterator[Path]:
    """Every image below a folder, in the order of `walk_class_folder`. others: counts the other files by ending.

    Raises:
        Failure: as `walk_class_folder`.
    """
    for walked in walk_class_folder(folder):
        yield from (Path(walked.path, name) for name in walked.images)
        others.update(map(suffix_label, walked.others))


# What changes if a file or folder is added to a directory, or removed or renamed in it: inode, time of its last
# modification (ns), size; and the time of its last change (ns), which tar, rsync and cp cannot set.
DirectoryState = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkedFolder:
    """A class folder, or a folder below it. All names are sorted. Folders and images are not hidden.

    state: before its entries were listed. device: of its file system. others: files that are no images, and all that is
    hidden, folders with a slash. has_open_link: one of the files is a link to nothing, or to what cannot be examined:
    it may become a folder while `state` stays.
    """

    path: str
    state: DirectoryState
    device: int
    folders: list[str]
    images: list[str]
    others: list[str]
    has_open_link: bool


def walk_class_folder(folder: Path) -> Iterator[WalkedFolder]:
    """A class folder and then all folders below it, in sorted order.

    Hidden files and folders are skipped: tools keep copies in them (`.ipynb_checkpoints`, `.snapshot`), and archives
    made on a Mac hold a `._1.jpg`, which is no image, for each `1.jpg`.

    Raises:
        Failure: NO_INPUT for a link to a folder above it, because the walk would not end, and for a folder that
            cannot be read, because its images would be missing silently.
    """
    pending = [os.fspath(folder)]
    while pending:
        path = pending.pop()
        try:
            status = os.stat(path)
            with os.scandir(path) as entries:
                listed = sorted(entries, key=attrgetter("name"))
        except OSError as error:
            raise unreadable_folder_failure(error, folder) from error
        images, others, folders, has_open_link = list[str](), list[str](), list[str](), False
        for entry in listed:
            if is_hidden(entry.name):
                others.append(f"{entry.name}/" if _is_folder(entry) else entry.name)
            elif _is_folder(entry):
                folders.append(entry.name)
                if entry.is_symlink():
                    _refuse_symlink_loop(Path(path, entry.name), folder)
            elif is_image(entry.name):
                images.append(entry.name)
            else:
                others.append(entry.name)
                has_open_link |= entry.is_symlink() and not os.path.isfile(entry.path)
        yield WalkedFolder(
            path=path,
            state=directory_state(status),
            device=status.st_dev,
            folders=folders,
            images=images,
            others=others,
            has_open_link=has_open_link,
        )
        pending += [os.path.join(path, name) for name in reversed(folders)]


def directory_state(status: os.stat_result) -> DirectoryState:
    """The state of the directory whose status this is."""
    return status.st_ino, status.st_mtime_ns, status.st_size, status.st_ctime_ns


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder or a link to one; what cannot be examined is a file."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def is_hidden(name: str) -> bool:
    """Whether `ls` hides it, or it is a folder of a system's own."""
    return name.startswith(".") or name in SYSTEM_FOLDERS


def is_image(name: str) -> bool:
    """Whether the name has the ending of an image and is not hidden."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not is_hidden(name)


def suffix_label(name: str) -> str:
    """The ending of a name, for messages; unusual endings share one label. What is hidden: as in `WalkedFolder`."""
    if is_hidden(name.rstrip("/")):
        return f"folder {one_line(name[:-1])}" if name.endswith("/") else HIDDEN_FILES
    suffix = os.path.splitext(name)[1].lower()
    if len(suffix) > MAX_SUFFIX_LENGTH or not suffix.isprintable() or " " in suffix:
        return "another ending"
    return suffix or "no ending"


def unreadable_folder_failure(error: OSError, folder: Path) -> Failure:
    """The Failure for a `folder` that the system refuses to list, or for an entry in it."""
    path = Path(error.filename or folder)
    inside = folder in path.parents
    fix = (
        f"let your user read {path.absolute()}, mend the link that it is, or move it elsewhere"
        if inside
        else _FIX_DATA_ROOT
    )
    if (
        path == folder
        and (source := SOURCES_OF_FILES.get(path.suffix.lower()))
        and isinstance(error, NotADirectoryError)
    ):
        fix = f"set data.name={source}"
    fix = (other_form_fix(path) or did_you_mean(path)) + fix
    return _data_root_failure(f"data.root cannot be read: {error.strerror}", str(path.absolute()), fix)


def _refuse_symlink_loop(link: Path, top: Path) -> None:
    target = link.resolve()
    walked = [above.resolve() for above in link.parents if above.is_relative_to(top)]
    if any(above.is_relative_to(target) for above in walked):
        raise Failure(
            "a link in data.root leads back to a folder above it",
            found=f"{link} -> {target}",
            fix="remove the link",
            code=ExitCode.NO_INPUT,
        )


def refuse_empty_classes(folder: Path, counts: Mapping[str, int], others: Mapping[str, int]) -> None:
    """Refuse classes without an image. others: the other files below their folders, by ending.

    Raises:
        Failure: NO_INPUT, naming the classes that have none.
    """
    empty = [name for name, images in counts.items() if images == 0]
    if empty:
        note, _, way = (describe_unread_files(others) or "").partition(". fix: ")
        raise _data_root_failure(
            f"class folders in {folder} without an image: {len(empty)}",
            f"{list_some(empty)}, in {folder.absolute()}{'; ' * bool(note)}{note}",
            f"set data.root to a folder of class folders alone, move those that are no classes out of {folder}, or "
            f"{way or 'put images into them'} ({' '.join(IMAGE_SUFFIXES)})",
        )


def count_files_outside_classes(root: Path, layout: FolderLayout, unread: Counter[str]) -> None:
    """Count the files that lie in no class folder.

    Raises:
        Failure: NO_INPUT if a folder cannot be listed.
    """
    for folder in {root, layout.training, layout.validation or layout.training, layout.test or layout.training}:
        for name in list_entries(folder, os.DirEntry.is_file):
            unread[suffix_label(name) + (OUTSIDE_CLASS_FOLDERS if is_image(name) else "")] += 1
        unread.update(suffix_label(f"{name}/") for name in list_entries(folder, os.DirEntry.is_dir) if is_hidden(name))


def _refuse_different_classes(
    training: Path, classes: tuple[str, ...], validation: Path, others: tuple[str, ...]
) -> None:
    only_here, only_there = sorted(set(classes) - set(others)), sorted(set(others) - set(classes))
    if only_here or only_there:
        actual = (
            f"only in {training.absolute()}: {list_some(only_here) or 'none'}; "
            f"only in {validation.absolute()}: {list_some(only_there) or 'none'}"
        )
        alike = describe_look_alikes((*only_here, *only_there))
        fixes = [f"let both have the same names: {alike}"] if alike else []
        fixes += [f"put images to measure into {validation / only_here[0]}"] if only_here and others else []
        fixes += [f"move {validation / only_there[0]} out of {validation.name}"] if only_there else []
        fixes += [f"move {validation} out of data.root: a part of the training images is taken, data.val_fraction"]
        raise _data_root_failure(
            "the class folders for training and for evaluation differ", actual, "; or ".join(fixes)
        )


def _data_root_failure(what: str, actual: str, fix: str = _FIX_DATA_ROOT) -> Failure:
    expected = "ROOT/train/CLASS/*.jpg with ROOT/test/CLASS/*.jpg (or val), or ROOT/CLASS/*.jpg"
    return Failure(what, found=actual, expected=expected, fix=fix, code=ExitCode.NO_INPUT)


MAX_LISTED_CLASSES: Final = 3
# Pictures that not every build of Pillow reads, though users take them for images.
UNSUPPORTED_IMAGE_SUFFIXES: Final = (
    ".heic",
    ".heif",
    ".jxl",
    ".jp2",
    ".svg",
    ".psd",
    ".dng",
    ".cr2",
    ".nef",
    ".arw",
)


# The first is a phone's format. Both commands are what their systems have for it.
CONVERT_FIX: Final = (
    "save pictures of other kinds as .jpg or .png (HEIC: `magick mogrify -format jpg *.heic` of ImageMagick, or on a "
    "Mac `sips -s format jpeg *.heic --out FOLDER`)"
)


def describe_unread_files(endings: Mapping[str, int]) -> str | None:
    """A note of the files that are no images, counted by ending; None if there are none."""
    if not endings:
        return None
    by_count = sorted(endings.items(), key=lambda item: (-item[1], item[0]))
    listed = list_some([f"{ending} ({count:,})" for ending, count in by_count])
    number = sum(endings.values())
    counted = f"{number:,} files are not read" if number > 1 else "1 file is not read"
    needed = {
        "move images into the folders of their classes": any(each.endswith(OUTSIDE_CLASS_FOLDERS) for each in endings),
        CONVERT_FIX: any(each in UNSUPPORTED_IMAGE_SUFFIXES for each in endings),
    }
    fixes = "; ".join(fix for fix, is_needed in needed.items() if is_needed)
    return f"{counted}: {listed}" + (f". fix: {fixes}" if fixes else "")


def split_folder_warnings(inside: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """A warning for each class folder that looks like a split: it would be trained on as one more class.

    Args:
        inside: the folders directly in each class folder.
    """
    matches = {
        name: sorted((inside.keys() & {*map(normalize_name, folders)}) - {name}) for name, folders in inside.items()
    }
    warnings = list[str]()
    for name, classes in matches.items():
        is_validation = name.lower() in VALIDATION_FOLDER_NAMES
        if len(classes) > (not is_validation):  # a part of the data may lack classes
            alternative = ", or the other class folders into data.root/train" if is_validation else ""
            warnings.append(
                f"the class folder {one_line(name)} holds folders named like other classes "
                f"({list_some(classes, MAX_LISTED_CLASSES, one_line)}): a part of the data, not a class? fix: move it "
                f"beside data.root{alternative}"
            )
    return (*warnings[:MAX_LISTED_CLASSES], *_repeated_folder_warnings(inside))


def _repeated_folder_warnings(inside: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """A warning if the folders in all class folders have the same names: SITE/SPECIES, whose classes are below."""
    counts = Counter(name for folders in inside.values() for name in {*folders})
    if len(counts) < 2 or min(counts.values()) < 2 or not all(inside.values()):
        return ()
    name, first = one_line(min(counts)), one_line(min(inside))
    question, more = "the classes", f"then data.group='^[^/]+/([^/]+)/' keeps each {first} in one split"
    if {other.lower() for other in counts} <= {*TRAINING_FOLDER_NAMES, *VALIDATION_FOLDER_NAMES}:
        question, more = "splits of the data", "or set data.root to one of the class folders"
    names = list_some(sorted(counts), describe=one_line)
    return (
        f"the class folders hold folders of the same names ({names}): are these {question}? fix: "
        f"if so, move them up, as {name}/{first}/ instead of {first}/{name}/; {more}",
    )


# How programs call the mask of an image: cat (1)_mask.png, cat (1)_mask_1.png beside cat (1).png.
MASK_PATTERN: Final = re.compile(r"(.+/.+?)[-_. ](?:masks?|seg|segmentation|gt|annotation)(?:[-_ ]?\d+)?(\.\w+)", re.I)
MAX_EXAMINED_NAMES: Final = 1000
MIN_MASK_SHARE: Final = 0.1


def mask_warnings(paths: Sequence[str]) -> tuple[str, ...]:
    """A warning if many image files are called as the mask of another one beside them: they would be trained on."""
    examined = range(0, len(paths), len(paths) // MAX_EXAMINED_NAMES + 1)
    matches = filter(None, (MASK_PATTERN.fullmatch(paths[number]) for number in examined))
    masks = [match for match in matches if any(os.path.exists(match[1] + suffix) for suffix in (match[2], ".jpg"))]
    if len(masks) < max(2, MIN_MASK_SHARE * len(examined)):
        return ()
    return (
        f"image files are called as masks of others beside them ({one_line(masks[0][0])}): they are images of the "
        "class too. fix: move the masks out of data.root",
    )


def layout_notes(layout: FolderLayout) -> Iterator[str]:
    """Notes of folders of images that are not read, because they are no split, and of a test split for validation."""
    training = one_line(layout.training.name)
    validation = one_line(layout.validation.name) if layout.validation else f"a part of {training}"
    if layout.aside:
        used = [f"{training} (training)", f"{validation} (validation)"]
        used += [f"{one_line(layout.test.name)} (test)"] if layout.test else []
        yield f"not read, beside {', '.join(used[:-1])} and {used[-1]}: {list_some(layout.aside, describe=one_line)}"
    if _is_test_folder(layout.validation):
        yield (
            f"{validation} is the validation split, since there is no folder val: it chooses the best checkpoint. With "
            f"a folder val, {validation} would be kept for one score at the end"
        )
