"""Finds the training and validation folders below `data.root`, their classes and their image files.

The paths are packed into one buffer of bytes, because each rank keeps those of millions of images.
This module does not import torch.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from entrypoint import ExitCode, Failure
from train.files import one_line

# What Pillow reads everywhere. Other files (labels, licences, thumbnails' databases) are not images.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
_FIX_DATA_ROOT = "set data.root to the folder that holds the class folders (in a container: mount it)"
MAX_SUFFIX_LENGTH = 9  # an ending
OUTSIDE_CLASS_FOLDERS = " beside the class folders"
# What the folders of the two sides are called, in any case. The first of the held-out ones that is there is taken.
TRAINING_FOLDER_NAMES = ("train", "training")
VALIDATION_FOLDER_NAMES = ("val", "valid", "validation", "dev", "test", "testing")


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderLayout:
    """Folders of class folders. validation is None where the held-out images are a part of the training images.

    `root/train/CLASS/` with `root/val/CLASS/` or `root/test/CLASS/` beside it, or `root/CLASS/` alone. aside: folders
    beside the two that look like images to learn from or to measure on, and are not read.
    """

    training: Path
    validation: Path | None
    classes: tuple[str, ...]
    aside: tuple[str, ...] = ()


def find_layout(root: Path) -> FolderLayout:
    """Look at the folders, not at the files.

    Raises:
        Failure: NO_INPUT, where the folder is missing, has no classes, or the two sides' classes differ; and where
            nobody can tell its sides from its classes.
    """
    beside = class_names(root)
    side = _find_training_folder(root, beside)
    training = root if side is None else root / side
    classes = beside if side is None else class_names(training)
    if len(classes) < 2:
        raise _too_few_classes_failure(root, training, classes)
    if side is None:
        _refuse_validation_without_training(root, classes)
        return FolderLayout(training=root, validation=None, classes=classes)
    validation = _find_validation_folder(root, beside)
    if validation:
        _refuse_different_classes(training, classes, validation, class_names(validation))
    others = (name for name in beside if name != side and (validation is None or name != validation.name))
    aside = tuple(name for name in others if _looks_like_image_folder(root / name, classes))
    return FolderLayout(training=training, validation=validation, classes=classes, aside=aside)


def _find_training_folder(root: Path, names: Collection[str]) -> str | None:
    """The folder to learn from; None where the folders are classes.

    `Train` among classes may be one, a vehicle: it is a side where it holds folders, or a held-out one is beside it.
    """
    called = [name for name in names if name.lower() in TRAINING_FOLDER_NAMES]
    if TRAINING_FOLDER_NAMES[0] in called:
        return TRAINING_FOLDER_NAMES[0]
    paired = any(name.lower() in VALIDATION_FOLDER_NAMES for name in names)
    sides = [name for name in called if paired or class_names(root / name)]
    if len(sides) > 1:
        found = f"{_abbreviate(sides)}, in {root.absolute()}"
        raise _data_root_failure(
            "data.root holds more than one folder to train on", found, "leave one of them in data.root"
        )
    return sides[0] if sides else None


def _find_validation_folder(root: Path, names: Collection[str]) -> Path | None:
    """Of `test` and `Test` the one that is written as we write it."""
    found = [name for name in names if name.lower() in VALIDATION_FOLDER_NAMES]
    found.sort(key=lambda name: (VALIDATION_FOLDER_NAMES.index(name.lower()), name != name.lower()))
    return root / found[0] if found else None


def _refuse_validation_without_training(root: Path, classes: tuple[str, ...]) -> None:
    """Held-out folders without one to learn from: they would be trained on as two classes."""
    if all(name.lower() in VALIDATION_FOLDER_NAMES for name in classes):
        what, found = (
            "data.root holds folders to measure on, and none to train on",
            f"{root.absolute()}: {_abbreviate(classes)}",
        )
        fix = (
            f"call the folder to train on {root / TRAINING_FOLDER_NAMES[0]}; if these are classes, "
            "give them other names"
        )
        raise _data_root_failure(what, found, fix)


def _looks_like_image_folder(folder: Path, classes: tuple[str, ...]) -> bool:
    """By its name, or by what lies directly in it: an image, or a folder called as a class."""
    if folder.name in classes or folder.name.lower() in (*TRAINING_FOLDER_NAMES, *VALIDATION_FOLDER_NAMES):
        return True
    try:
        with os.scandir(folder) as found:
            return any(entry.name in classes or is_image(entry.name) for entry in found)
    except OSError:  # nothing in it is wanted
        return False


def _too_few_classes_failure(root: Path, training: Path, classes: tuple[str, ...]) -> Failure:
    """Images without class folders are told: who has them stands one folder too deep, or has not sorted them."""
    what, listed = f"data.root {root} has fewer than two class folders", ", ".join(classes) or "none"
    images = sum(map(is_image, list_entries(training, os.DirEntry.is_file)))
    if not images:
        return _data_root_failure(what, f"{training.absolute()}: {listed}")
    told = f"{images:,} images" if images > 1 else "1 image"
    above = os.path.normpath(root / "..") if ".." not in root.parts else str(root.absolute() / "..")
    one = f"give the folder above, data.root={above}, if this is one class of it; or " if training == root else ""
    inside = "" if training == root else f" in {training}"
    fix = f"{one}make one folder for each class{inside}"
    return _data_root_failure(what, f"{training.absolute()}: {listed}; {told} directly in it", fix)


def class_names(folder: Path) -> tuple[str, ...]:
    """The class folders, sorted; hidden ones are none.

    Raises:
        Failure: NO_INPUT, where the folder cannot be listed.
    """
    return tuple(name for name in list_entries(folder, os.DirEntry.is_dir) if not is_hidden(name))


def list_entries(folder: Path, wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
    """The names of those in `folder` that are wanted, sorted.

    Raises:
        Failure: NO_INPUT, where the folder cannot be listed, or one in it cannot be looked at.
    """
    try:
        with os.scandir(folder) as found:
            return sorted(entry.name for entry in found if wanted(entry))
    except OSError as error:
        raise unreadable_folder_failure(error, folder) from error


def image_files(folder: Path, others: Counter[str] | None = None, inside: set[str] | None = None) -> Iterator[Path]:
    """Every image below a class folder, in sorted order, folders inside folders included.

    Hidden files and folders are passed over: tools keep copies there (`.ipynb_checkpoints`, `.snapshot`), and a Mac's
    archives hold a `._1.jpg`, which is no image, for each `1.jpg`.

    others: counts by ending what is no image. inside: takes the folders directly in it.

    Raises:
        Failure: NO_INPUT for a link to a folder above it, which would be walked without end, and for a folder that
            cannot be read: its images would be missing without a word.
    """

    def refuse(error: OSError) -> None:
        raise unreadable_folder_failure(error, folder) from error

    for above, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        folders[:] = sorted(name for name in folders if not is_hidden(name))
        if inside is not None and above == os.fspath(folder):
            inside.update(folders)
        for link in (Path(above, name) for name in folders if os.path.islink(os.path.join(above, name))):
            _refuse_symlink_loop(link, folder)
        yield from (Path(above, name) for name in sorted(names) if is_image(name))
        if others is not None:
            others.update(suffix_label(name) for name in names if not is_hidden(name) and not is_image(name))


def is_hidden(name: str) -> bool:
    """Whether `ls` leaves it out, or Python has made it beside a data set of the user's own."""
    return name.startswith(".") or name == "__pycache__"


def is_image(name: str) -> bool:
    """By its name."""
    return name.lower().endswith(IMAGE_SUFFIXES) and not is_hidden(name)


def suffix_label(name: str) -> str:
    """Of a file's name, as people call it; one word for all that nobody would."""
    found = os.path.splitext(name)[1].lower()
    if len(found) > MAX_SUFFIX_LENGTH or not found.isprintable() or " " in found:
        return "another ending"
    return found or "no ending"


def unreadable_folder_failure(error: OSError, folder: Path) -> Failure:
    """What a user reads where the system refuses `folder`, or something in it."""
    place = Path(error.filename or folder)
    inside = folder in place.parents
    fix = f"let your user read {place.absolute()}, mend the link that it is, or remove it" if inside else _FIX_DATA_ROOT
    return _data_root_failure(f"data.root cannot be read: {error.strerror}", str(place.absolute()), fix)


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


def count_images(folder: Path, classes: tuple[str, ...], others: Counter[str] | None = None) -> int:
    """Images in all classes. others: as `image_files`. Raises as `count_images_by_class`."""
    return sum(count_images_by_class(folder, classes, others).values())


def count_images_by_class(
    folder: Path,
    classes: tuple[str, ...],
    others: Counter[str] | None = None,
    inside: Mapping[str, set[str]] = MappingProxyType({}),
) -> dict[str, int]:
    """Images of each class. others, and inside of each class: as `image_files`.

    Raises:
        Failure: NO_INPUT, naming the classes that have none.
    """
    found = {name: sum(1 for _ in image_files(folder / name, others, inside.get(name))) for name in classes}
    empty = [name for name, images in found.items() if images == 0]
    if empty:
        what = f"class folders in {folder} without an image: {len(empty)}"
        raise _data_root_failure(
            what,
            f"{_abbreviate(empty)}, in {folder.absolute()}",
            f"remove them, or put images into them ({' '.join(IMAGE_SUFFIXES)})",
        )
    return found


def count_files_outside_classes(root: Path, found: FolderLayout, unread: Counter[str]) -> None:
    """Count the files that lie in no class folder.

    Raises:
        Failure: NO_INPUT, where a folder cannot be listed.
    """
    for folder in {root, found.training, found.validation or found.training}:
        for name in list_entries(folder, os.DirEntry.is_file):
            if not is_hidden(name):
                unread[suffix_label(name) + (OUTSIDE_CLASS_FOLDERS if is_image(name) else "")] += 1


def _refuse_different_classes(
    training: Path, classes: tuple[str, ...], validation: Path, others: tuple[str, ...]
) -> None:
    only_here, only_there = sorted(set(classes) - set(others)), sorted(set(others) - set(classes))
    if only_here or only_there:
        found = (
            f"only in {training.absolute()}: {_abbreviate(only_here)}; "
            f"only in {validation.absolute()}: {_abbreviate(only_there)}"
        )
        same = f"let both folders in data.root have the same: {_abbreviate(sorted({*classes, *others}))}"
        fix = f"{same}; or, if the second is nothing to measure on, move it out of data.root"
        raise _data_root_failure("the class folders for training and for evaluation differ", found, fix)


def _abbreviate(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "none"


def _data_root_failure(what: str, found: str, fix: str = _FIX_DATA_ROOT) -> Failure:
    expected = "ROOT/train/CLASS/*.jpg with ROOT/test/CLASS/*.jpg (or val), or ROOT/CLASS/*.jpg"
    return Failure(what, found=found, expected=expected, fix=fix, code=ExitCode.NO_INPUT)


MAX_LISTED: Final = 5  # kinds of files
MAX_LISTED_CLASSES: Final = 3  # classes
# Pictures that Pillow does not read everywhere: who has them takes them for images.
UNSUPPORTED_IMAGE_SUFFIXES: Final = (
    ".heic",
    ".heif",
    ".avif",
    ".jxl",
    ".jp2",
    ".svg",
    ".psd",
    ".dng",
    ".cr2",
    ".nef",
    ".arw",
)


def describe_unread_files(endings: Mapping[str, int]) -> str | None:
    """The files that are no images, counted by ending, in words; None where there are none."""
    if not endings:
        return None
    kinds = sorted(endings.items(), key=lambda kind: (-kind[1], kind[0]))
    listed = ", ".join(f"{ending} ({count:,})" for ending, count in kinds[:MAX_LISTED])
    more = f" and {len(kinds) - MAX_LISTED} more endings" if len(kinds) > MAX_LISTED else ""
    number = sum(endings.values())
    told = f"{number:,} files are not read" if number > 1 else "1 file is not read"
    return f"{told}: {listed}{more}{_unread_files_fix(endings)}"


def _unread_files_fix(endings: Mapping[str, int]) -> str:
    fixes = (
        ["move images into the folders of their classes"]
        if any(one.endswith(OUTSIDE_CLASS_FOLDERS) for one in endings)
        else []
    )
    fixes += (
        ["save pictures of other kinds as .jpg or .png"]
        if any(one in UNSUPPORTED_IMAGE_SUFFIXES for one in endings)
        else []
    )
    return f". fix: {'; '.join(fixes)}" if fixes else ""


def split_folder_warnings(inside: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """A warning for each class folder that looks like a part of the data: it would be trained on as one more class.

    Args:
        inside: of each class folder the folders directly in it.
    """
    found = {name: sorted((inside.keys() & {*folders}) - {name}) for name, folders in inside.items()}
    return tuple(_split_folder_warning(name, classes) for name, classes in found.items() if len(classes) > 1)[
        :MAX_LISTED_CLASSES
    ]


def _split_folder_warning(name: str, classes: Sequence[str]) -> str:
    listed = ", ".join(map(one_line, classes[:MAX_LISTED_CLASSES])) + (
        ", ..." if len(classes) > MAX_LISTED_CLASSES else ""
    )
    sides = ", or the other class folders into data.root/train" if name.lower() in VALIDATION_FOLDER_NAMES else ""
    return (
        f"the class folder {one_line(name)} holds folders named like other classes ({listed}): a part of the data, not "
        f"a class? fix: move it beside data.root{sides}"
    )


def describe_ignored_folders(found: FolderLayout) -> str | None:
    """The folders beside the two sides that look like images, in words; None where there are none."""
    if not found.aside:
        return None
    listed = ", ".join(map(one_line, found.aside[:MAX_LISTED]))
    more = f" and {len(found.aside) - MAX_LISTED:,} more" if len(found.aside) > MAX_LISTED else ""
    learned = one_line(found.training.name)
    measured = one_line(found.validation.name) if found.validation else f"a part of {learned}"
    return f"beside {learned}, which is trained on, and {measured}, which is held out, not read: {listed}{more}"


def missing_validation_warnings(
    classes: Sequence[str], training: Sequence[int], validation: Sequence[int]
) -> tuple[str, ...]:
    """A warning where classes are too small for an image to be set aside: nothing measures them.

    Args:
        training, validation: images of each class.
    """
    missed = [
        (one_line(name), count) for name, count, other in zip(classes, training, validation, strict=True) if not other
    ]
    if not missed:
        return ()
    fix = "fix: more images of them, or a larger data.val_fraction"
    if len(missed) == 1:
        return (
            f"class {missed[0][0]} has {_format_image_count(missed[0][1])}: none is held out. "
            + fix.replace("them", "it"),
        )
    listed = ", ".join(f"{name} ({_format_image_count(count)})" for name, count in missed[:MAX_LISTED_CLASSES])
    more = f" and {len(missed) - MAX_LISTED_CLASSES:,} more" if len(missed) > MAX_LISTED_CLASSES else ""
    return (f"of {len(missed):,} classes no image is held out: {listed}{more}. {fix}",)


def _format_image_count(count: int) -> str:
    return "1 image" if count == 1 else f"{count:,} images"
