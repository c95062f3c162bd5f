"""From data.root to the array files that are there, which arrays in them are meant, and their shapes. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from entrypoint import ExitCode, Failure
from train.data import headers

ENDINGS: Final = {"npz": (".npz",), "tensor": (".safetensors", ".pt", ".pth")}
# What the pair of arrays is called, in any case: ours, scikit-learn's and keras', sklearn's bunches and torchvision's.
PAIRS: Final = (("images", "labels"), ("x", "y"), ("data", "target"), ("data", "targets"), ("data", "labels"))
TRAINING: Final = ("train", "training")
HELD_OUT: Final = ("val", "valid", "validation", "test")
EXPECTED_NAMES: Final = "images and labels (or x and y, data and target), or x_train, y_train, x_test and y_test"

Names = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What headers alone tell: the shape of all training images, and whether there is a held-out side beside them.

    beside: how many images that side has; None where only its data tell.
    """

    shape: tuple[int, ...]
    held_out: bool
    beside: int | None = None


def files(root: Path, kind: str) -> tuple[Path, Path | None]:
    """The training file, and the held-out one if it is another: data.root itself, or what lies in it.

    Raises:
        Failure: NO_INPUT, saying what is there instead.
    """
    if os.path.isfile(root):
        return _with_an_ending(root, kind), None
    listed = _listed(root, kind)
    training = [path for path in listed if path.stem.lower() in TRAINING]
    held_out = [path for stem in HELD_OUT for path in listed if path.stem.lower() == stem]
    if not training and len(listed) == 1:
        return listed[0], None
    if len(training) != 1:
        raise _no_files(f"data.root holds {len(training) or 'no'} training files", kind, root, listed)
    return training[0], next(iter(held_out), None)


def named(keys: Iterable[str], file: Path) -> tuple[Names, Names | None]:
    """Which arrays of a file are the training images and labels, and which the held-out ones, if they are there too.

    `images` and `labels` alone, or both sides as `x_train` or `train_images` write them.

    Raises:
        Failure: DATA, naming the arrays that are there.
    """
    there = {key.lower(): key for key in keys}
    training = _pairs(there, ("", *TRAINING))
    if len(training) != 1:
        what = f"{file.name} holds {len(training) or 'no'} pairs of images and labels"
        raise headers.unusable(file, what, f"arrays {', '.join(there.values()) or 'none'}", EXPECTED_NAMES)
    return training[0], next(iter(_pairs(there, HELD_OUT)), None)


def _pairs(there: Mapping[str, str], sides: Iterable[str]) -> list[Names]:
    found = []
    for side in sides:
        for images, labels in PAIRS:
            forms = [(images, labels)] if not side else []
            forms += (
                [(f"{images}_{side}", f"{labels}_{side}"), (f"{side}_{images}", f"{side}_{labels}")] if side else []
            )
            found += [(there[x], there[y]) for x, y in forms if x in there and y in there]
    return found


def look(root: Path, kind: str) -> Seen | None:
    """What is meant by data.root, from the files' headers; None for .pt files, whose header is a pickle.

    Raises:
        Failure: NO_INPUT for what is not there, DATA for what is no such file.
    """
    training, held_out = files(root, kind)
    if training.suffix not in headers.SHAPES:
        return None
    shapes = headers.shapes(training)
    (images, _), others = named(shapes, training)
    beside = None
    if others is not None and held_out is None:
        beside = next(iter(shapes[others[0]]), None)
    elif held_out is not None and held_out.suffix in headers.SHAPES:
        theirs = headers.shapes(held_out)
        beside = next(iter(theirs[named(theirs, held_out)[0][0]]), None)
    return Seen(shape=shapes[images], held_out=others is not None or held_out is not None, beside=beside)


def _with_an_ending(path: Path, kind: str) -> Path:
    if path.suffix in ENDINGS[kind]:
        return path
    failure = _no_files(f"data.root has not the ending of data.name {kind}", kind, path, [path])
    other = next((name for name, endings in ENDINGS.items() if path.suffix in endings), None)
    failure.fix = f"set data.name to {other}" if other else failure.fix
    raise failure


def _listed(root: Path, kind: str) -> list[Path]:
    try:
        return sorted(path for path in root.iterdir() if path.suffix in ENDINGS[kind] and not path.name.startswith("."))
    except OSError as error:
        raise _no_files(f"data.root cannot be read: {error.strerror}", kind, root, [root]) from error


def _no_files(what: str, kind: str, root: Path, found: list[Path]) -> Failure:
    one, more = ENDINGS[kind][0], f" (or {', '.join(ENDINGS[kind][1:])})" if ENDINGS[kind][1:] else ""
    expected = f"one file *{one}{more}, or a folder with train{one} and, if you have them, val{one} or test{one}"
    listed = ", ".join(str(path.absolute()) for path in found[:5]) or f"no such file in {root.absolute()}"
    return Failure(what, found=listed, expected=expected, fix=headers.FIX, code=ExitCode.NO_INPUT)
