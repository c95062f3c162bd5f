"""From a folder of class folders to what is there: classes, image files, and which of them are held out. No torch."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from entrypoint import ExitCode, Failure

# What Pillow reads everywhere. Other files (labels, licences, thumbnails' databases) are not images.
SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
_ELSEWHERE = "set data.root to the folder that holds the class folders (in a container: mount it)"
LONGEST = 9  # an ending
BESIDE = " beside the class folders"
# What the folders of the two sides are called, in any case. The first of the held-out ones that is there is taken.
TRAINING = ("train", "training")
HELD_OUT = ("val", "valid", "validation", "dev", "test", "testing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Folders of class folders. held_out is None where the held-out images are a part of the training images.

    `root/train/CLASS/` with `root/val/CLASS/` or `root/test/CLASS/` beside it, or `root/CLASS/` alone. aside: folders
    beside the two that look like images to learn from or to measure on, and are not read.
    """

    training: Path
    held_out: Path | None
    classes: tuple[str, ...]
    aside: tuple[str, ...] = ()


def layout(root: Path) -> Layout:
    """Look at the folders, not at the files.

    Raises:
        Failure: NO_INPUT, where the folder is missing, has no classes, or the two sides' classes differ; and where
            nobody can tell its sides from its classes.
    """
    beside = class_names(root)
    side = _training(root, beside)
    training = root if side is None else root / side
    classes = beside if side is None else class_names(training)
    if len(classes) < 2:
        raise _too_few(root, training, classes)
    if side is None:
        _refuse_sides(root, classes)
        return Layout(training=root, held_out=None, classes=classes)
    held_out = _held_out(root, beside)
    if held_out:
        _same(training, classes, held_out, class_names(held_out))
    others = (name for name in beside if name != side and (held_out is None or name != held_out.name))
    aside = tuple(name for name in others if _looks_like_images(root / name, classes))
    return Layout(training=training, held_out=held_out, classes=classes, aside=aside)


def _training(root: Path, names: Collection[str]) -> str | None:
    """The folder to learn from; None where the folders are classes.

    `Train` among classes may be one, a vehicle: it is a side where it holds folders, or a held-out one is beside it.
    """
    called = [name for name in names if name.lower() in TRAINING]
    if TRAINING[0] in called:
        return TRAINING[0]
    paired = any(name.lower() in HELD_OUT for name in names)
    sides = [name for name in called if paired or class_names(root / name)]
    if len(sides) > 1:
        found = f"{_some(sides)}, in {root.absolute()}"
        raise _missing("data.root holds more than one folder to train on", found, "leave one of them in data.root")
    return sides[0] if sides else None


def _held_out(root: Path, names: Collection[str]) -> Path | None:
    """Of `test` and `Test` the one that is written as we write it."""
    found = [name for name in names if name.lower() in HELD_OUT]
    found.sort(key=lambda name: (HELD_OUT.index(name.lower()), name != name.lower()))
    return root / found[0] if found else None


def _refuse_sides(root: Path, classes: tuple[str, ...]) -> None:
    """Held-out folders without one to learn from: they would be trained on as two classes."""
    if all(name.lower() in HELD_OUT for name in classes):
        what, found = (
            "data.root holds folders to measure on, and none to train on",
            f"{root.absolute()}: {_some(classes)}",
        )
        fix = f"call the folder to train on {root / TRAINING[0]}; if these are classes, give them other names"
        raise _missing(what, found, fix)


def _looks_like_images(folder: Path, classes: tuple[str, ...]) -> bool:
    """By its name, or by what lies directly in it: an image, or a folder called as a class."""
    if folder.name in classes or folder.name.lower() in (*TRAINING, *HELD_OUT):
        return True
    try:
        with os.scandir(folder) as found:
            return any(entry.name in classes or is_image(entry.name) for entry in found)
    except OSError:  # nothing in it is wanted
        return False


def _too_few(root: Path, training: Path, classes: tuple[str, ...]) -> Failure:
    """Images without class folders are told: who has them stands one folder too deep, or has not sorted them."""
    what, listed = f"data.root {root} has fewer than two class folders", ", ".join(classes) or "none"
    images = sum(map(is_image, entries(training, os.DirEntry.is_file)))
    if not images:
        return _missing(what, f"{training.absolute()}: {listed}")
    told = f"{images:,} images" if images > 1 else "1 image"
    above = os.path.normpath(root / "..") if ".." not in root.parts else str(root.absolute() / "..")
    one = f"give the folder above, data.root={above}, if this is one class of it; or " if training == root else ""
    inside = "" if training == root else f" in {training}"
    fix = f"{one}make one folder for each class{inside}"
    return _missing(what, f"{training.absolute()}: {listed}; {told} directly in it", fix)


def class_names(folder: Path) -> tuple[str, ...]:
    """The class folders, sorted; hidden ones are none.

    Raises:
        Failure: NO_INPUT, where the folder cannot be listed.
    """
    return tuple(name for name in entries(folder, os.DirEntry.is_dir) if not hidden(name))


def entries(folder: Path, wanted: Callable[[os.DirEntry[str]], bool]) -> list[str]:
    """The names of those in `folder` that are wanted, sorted.

    Raises:
        Failure: NO_INPUT, where the folder cannot be listed, or one in it cannot be looked at.
    """
    try:
        with os.scandir(folder) as found:
            return sorted(entry.name for entry in found if wanted(entry))
    except OSError as error:
        raise unreadable(error, folder) from error


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
        raise unreadable(error, folder) from error

    for above, folders, names in os.walk(folder, followlinks=True, onerror=refuse):
        folders[:] = sorted(name for name in folders if not hidden(name))
        if inside is not None and above == os.fspath(folder):
            inside.update(folders)
        for link in (Path(above, name) for name in folders if os.path.islink(os.path.join(above, name))):
            _refuse_circle(link, folder)
        yield from (Path(above, name) for name in sorted(names) if is_image(name))
        if others is not None:
            others.update(ending(name) for name in names if not hidden(name) and not is_image(name))


def hidden(name: str) -> bool:
    """Whether `ls` leaves it out, or Python has made it beside a data set of the user's own."""
    return name.startswith(".") or name == "__pycache__"


def is_image(name: str) -> bool:
    """By its name."""
    return name.lower().endswith(SUFFIXES) and not hidden(name)


def ending(name: str) -> str:
    """Of a file's name, as people call it; one word for all that nobody would."""
    found = os.path.splitext(name)[1].lower()
    if len(found) > LONGEST or not found.isprintable() or " " in found:
        return "another ending"
    return found or "no ending"


def unreadable(error: OSError, folder: Path) -> Failure:
    """What a user reads where the system refuses `folder`, or something in it."""
    place = Path(error.filename or folder)
    inside = folder in place.parents
    fix = f"let your user read {place.absolute()}, mend the link that it is, or remove it" if inside else _ELSEWHERE
    return _missing(f"data.root cannot be read: {error.strerror}", str(place.absolute()), fix)


def _refuse_circle(link: Path, top: Path) -> None:
    target = link.resolve()
    walked = [above.resolve() for above in link.parents if above.is_relative_to(top)]
    if any(above.is_relative_to(target) for above in walked):
        raise Failure(
            "a link in data.root leads back to a folder above it",
            found=f"{link} -> {target}",
            fix="remove the link",
            code=ExitCode.NO_INPUT,
        )


def count(folder: Path, classes: tuple[str, ...], others: Counter[str] | None = None) -> int:
    """Images in all classes. others: as `image_files`. Raises as `counts`."""
    return sum(counts(folder, classes, others).values())


def counts(
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
        raise _missing(
            what,
            f"{_some(empty)}, in {folder.absolute()}",
            f"remove them, or put images into them ({' '.join(SUFFIXES)})",
        )
    return found


def beside(root: Path, found: Layout, unread: Counter[str]) -> None:
    """Count the files that lie in no class folder.

    Raises:
        Failure: NO_INPUT, where a folder cannot be listed.
    """
    for folder in {root, found.training, found.held_out or found.training}:
        for name in entries(folder, os.DirEntry.is_file):
            if not hidden(name):
                unread[ending(name) + (BESIDE if is_image(name) else "")] += 1


def _same(training: Path, classes: tuple[str, ...], held_out: Path, others: tuple[str, ...]) -> None:
    only_here, only_there = sorted(set(classes) - set(others)), sorted(set(others) - set(classes))
    if only_here or only_there:
        found = f"only in {training.absolute()}: {_some(only_here)}; only in {held_out.absolute()}: {_some(only_there)}"
        same = f"let both folders in data.root have the same: {_some(sorted({*classes, *others}))}"
        fix = f"{same}; or, if the second is nothing to measure on, move it out of data.root"
        raise _missing("the class folders for training and for evaluation differ", found, fix)


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") or "none"


def _missing(what: str, found: str, fix: str = _ELSEWHERE) -> Failure:
    expected = "ROOT/train/CLASS/*.jpg with ROOT/test/CLASS/*.jpg (or val), or ROOT/CLASS/*.jpg"
    return Failure(what, found=found, expected=expected, fix=fix, code=ExitCode.NO_INPUT)
