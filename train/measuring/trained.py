"""What a checkpoint tells of the data that it was trained on, held against the data that it is measured on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure
from train.data import arrayfiles, imagefolder
from train.measuring import chosen
from train.measuring.chosen import Chosen
from train.oneline import shortened
from train.record import progress
from train.settings import changes, names
from train.settings.config import Data

SHOWN: Final = 8  # names of classes in a line
NOT_NEW: Final = "the result does not tell how new images are answered"
NAMED: Final = (names.SYNTHETIC, names.FOLDER, *names.PUBLISHED)  # what else there is may know its classes by number


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Which data, with which classes, how many samples its two sides have, and their digests, where they are known:
    see `digest.facts`."""

    data: Data
    classes: tuple[str, ...]
    training: int
    held_out: int
    digests: Mapping[str, str] = field(default_factory=dict)

    @property
    def images(self) -> int:
        """On both sides."""
        return self.training + self.held_out

    def measured(self, *, whole: bool) -> str:
        """What is measured, in words: both sides, or the held-out one."""
        count = progress.many(self.images, "image")
        return f"all {count} of {self.place}" if whole else f"the {self.held_out:,} held-out of {count} of {self.place}"

    @property
    def place(self) -> str:
        """Where they come from, in a word."""
        return self.data.root if _on_disk(self.data) else self.data.name


def of(found: Chosen) -> Facts | None:
    """Of the training; None where the checkpoint does not say it. Raises Failure (DATA) for a damaged one."""
    told, data = chosen.state(found).get("data") or {}, chosen.trained(found).data
    try:
        sides = {name: int(told[name]) for name in ("training", "held_out")}
        digests = {str(side): str(digest) for side, digest in told.get(changes.DIGESTS, {}).items()}
        return Facts(data=data, classes=tuple(map(str, told["classes"])), **sides, digests=digests)
    except (
        LookupError,
        TypeError,
        ValueError,
        OverflowError,
        AttributeError,
    ):  # JSON's Infinity is no number of images
        return None


def unclaimed(data: Data, trained: Facts | None) -> Data:
    """Without the number of class folders that the training's file may state: their names are compared, which says
    more."""
    return replace(data, classes=Data().classes) if trained and data.name == names.FOLDER else data


def refuse_other_classes(trained: Facts, there: Facts) -> None:
    """An answer is a number: of other classes, or in another order, it means another one. there: as numbered by
    `partial.of`.

    Raises:
        Failure: DATA, with the names of both.
    """
    if trained.classes == there.classes or _by_number(trained, there):
        return
    where = "data.classes, data.frames" if there.data.name == names.SYNTHETIC else "data.root, data.name"
    raise Failure(
        "the data has other classes than the model was trained on",
        found=f"{_listed(there.classes, trained.classes)} (in {there.place})",
        expected=f"{_listed(trained.classes, there.classes)} (of the training)",
        fix=f"measure it on data that has the training's classes, by these names: {where}; or train on this data, with "
        "another run.name",
        code=ExitCode.DATA,
    )


def notes(trained: Facts, there: Facts, *, whole: bool) -> tuple[str, ...]:
    """What may make the numbers other than they look, a line each. whole: both sides are measured."""
    found = _numbered(trained, there), _lacking(trained, there), _seen_before(trained, there, whole=whole)
    return tuple(line for line in found if line is not None)


def _by_number(trained: Facts, there: Facts) -> bool:
    """Whether there are as many, and one side has no names for them: arrays have labels alone."""
    nameless = [one.data.name not in NAMED and one.classes == _numbers(one.classes) for one in (trained, there)]
    return any(nameless) and len(trained.classes) == len(there.classes)


def _numbers(classes: Sequence[str]) -> tuple[str, ...]:
    return tuple(map(str, range(len(classes))))


def _numbered(trained: Facts, there: Facts) -> str | None:
    if trained.classes == there.classes or not _by_number(trained, there):
        return None
    return (
        f"classes are compared by number, without names on one side: {_some(there.classes)} of the data are taken for "
        f"{_some(trained.classes)} of the training"
    )


def _lacking(trained: Facts, there: Facts) -> str | None:
    """Classes of the training of which the data has no folder: see partial.py."""
    if trained.classes == there.classes or _by_number(trained, there):
        return None
    here = set(there.classes)
    missed = [name for name in trained.classes if name not in here]
    count = f"{len(there.classes):,} of the training's {len(trained.classes):,} classes"
    return f"{count} are measured: there is no folder of {_some(missed)} in {there.place}"


def _seen_before(trained: Facts, there: Facts, *, whole: bool) -> str | None:
    """Whether the model was trained on what is measured. A checkpoint knows how many samples there were, and by digests
    whether these are the same; not which they were."""
    if not whole and _same_split(trained, there):
        return None
    if _source(trained.data) != _source(there.data) and not _known_same(trained, there):
        return _elsewhere(trained, there, whole=whole)
    if not whole and not _divided(there.data):
        return _moved(trained, there)
    measured = there.images if whole else there.held_out
    why = NOT_NEW if whole else f"the split is not the training's ({_drawn_from(trained, there)})"
    if (count := _counted(trained, there, whole=whole)) is not None:
        return f"{count:,} of these {measured:,} images were trained on: {why}" if count else None
    sure = "are" if there.data.name in NAMED else "may be"  # nobody but their author knows how others are divided
    return f"images that the model was trained on {sure} among these {measured:,}: {why}"


def _same_split(trained: Facts, there: Facts) -> bool:
    """A side of its own may change: what was trained on stays on the other."""
    same = {side: sizes[0] == sizes[1] and not _other(trained, there, side) for side, sizes in _sizes(trained, there)}
    return (all(same.values()) and trained.data.group == there.data.group) or (
        same["training"] and not _divided(there.data)
    )


def _sizes(trained: Facts, there: Facts) -> Iterable[tuple[str, tuple[int, int]]]:
    return ("training", (trained.training, there.training)), ("held_out", (trained.held_out, there.held_out))


def _other(trained: Facts, there: Facts, part: str) -> bool:
    """Whether both digests of this part are known, and differ. Those of another kind of data cannot be compared."""
    before, now = trained.digests.get(part), there.digests.get(part)
    return trained.data.name == there.data.name and None not in (before, now) and before != now


def _known_same(trained: Facts, there: Facts) -> bool:
    """Whether these are surely the same files, wherever they lie now. Arrays of the same digest may be others."""
    parts = ("all",) if "all" in trained.digests else changes.SIDES
    same = (trained.digests.get(part, "?") == there.digests.get(part) for part in parts)
    return (trained.data.name, there.data.name) == (names.FOLDER, names.FOLDER) and all(same)


def _other_files(trained: Facts, there: Facts) -> bool:
    """Whether some came, went or were renamed since, though there may be as many."""
    if "all" in trained.digests and "all" in there.digests:
        return _other(trained, there, "all")
    asked = [(facts.data.val_fraction, facts.data.group) for facts in (trained, there)]
    return asked[0] == asked[1] and any(_other(trained, there, side) for side in changes.SIDES)


def _drawn_from(trained: Facts, there: Facts) -> str:
    if trained.images == there.images and _other_files(trained, there):
        return "files came, went or were renamed since, and it is drawn anew from all"
    return f"it held out {trained.held_out:,} of {trained.images:,} images"


def _counted(trained: Facts, there: Facts, *, whole: bool) -> int | None:
    """How many of the measured images of the same source were trained on, where that can be told."""
    if there.data.name == names.SYNTHETIC:  # numbered: the first are trained on, the last are held out
        return max(0, min(trained.training, there.images) - (0 if whole else there.training))
    if trained.images != there.images or _other_files(trained, there):
        return None
    if whole:
        return trained.training
    if trained.data.group or there.data.group or ":" in there.data.name:
        return None
    return max(0, there.held_out - trained.held_out)  # see data/split.py: the smaller part lies in the larger one


def _moved(trained: Facts, there: Facts) -> str | None:
    """Sides of their own: what came new to the training side does no harm here."""
    if there.training > trained.training:
        return None
    if there.training == trained.training:
        sides = "the training side has other files, or other names, than in the training"
    else:
        sides = f"of {trained.training:,} images on the training side {there.training:,} are left there"
    return f"{sides}: if they were moved to the held-out side, some of these were trained on"


def _elsewhere(trained: Facts, there: Facts, *, whole: bool) -> str | None:
    """Other files, as far as their place says."""
    if _source(there.data) in [_source(replace(trained.data, root=folder)) for folder in _sides(trained.data.root)]:
        return f"these are the images that the model was trained on: {NOT_NEW}"
    if whole and (trained.training, trained.held_out) == (there.training, there.held_out):
        return f"as many images as in the training: if they are its own, {trained.training:,} of them were trained on"
    if whole or not _divided(there.data):
        return None
    return (
        f"{there.held_out:,} of the {there.images:,} images in {there.place} are measured, by a split of their own: "
        "--all measures all; if the training's images are among them, some of these were trained on"
    )


def _sides(root: str) -> list[str]:
    """The folders in a folder that may be the one it was trained on; also where it is not there any more."""
    named = {imagefolder.TRAINING[0]}
    with suppress(Failure):
        named.update(name for name in imagefolder.class_names(Path(root)) if name.lower() in imagefolder.TRAINING)
    return [os.path.join(root, name) for name in named]


def _divided(data: Data) -> bool:
    """Whether the held-out images are a part of all, and not a side of their own; True where nobody knows."""
    if data.name == names.FOLDER:
        return imagefolder.layout(Path(data.root)).held_out is None
    if data.name in names.ARRAYS:
        seen = arrayfiles.look(Path(data.root), data.name)
        return seen is None or not seen.held_out
    return data.name not in names.PUBLISHED


def _source(data: Data) -> tuple[str, str | None]:
    return data.name, None if data.name == names.SYNTHETIC else os.path.realpath(data.root)


def _on_disk(data: Data) -> bool:
    return data.name in (names.FOLDER, *names.PUBLISHED, *names.ARRAYS)


def _listed(classes: Sequence[str], others: Sequence[str]) -> str:
    """How many, the first, and those that the others lack: in a long list these would not show."""
    known = set(others)
    only = [name for name in classes if name not in known]
    more = f"; only here: {_some(only)}" if only and len(classes) > SHOWN else ""
    return f"{len(classes):,}: {_some(classes)}{more}"


def _some(classes: Sequence[str]) -> str:
    return ", ".join(map(shortened, classes[:SHOWN])) + (
        f" and {len(classes) - SHOWN:,} more" if len(classes) > SHOWN else ""
    )
