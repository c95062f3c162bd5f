"""Finds the files of an array data set, and reads their shapes and dtypes without torch."""

from __future__ import annotations

import ast
import json
import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from entrypoint import ExitCode, Failure

MAX_HEADER_BYTES, MAX_NPY_HEADER_BYTES = 10_000_000, 10_000  # bytes: more is no header; numpy's own limit
FIX_DATA_ROOT: Final = "set data.root to the file, or to the folder that holds it (in a container: mount it)"
PARSE_ERRORS: Final = (
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    SyntaxError,
    EOFError,
    RecursionError,
    OverflowError,
)


def read_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each array, by name; read from the headers alone.

    Raises:
        Failure: DATA for a file that is broken, NO_INPUT for one that cannot be opened.
    """
    try:
        with file.open("rb") as stream:
            return SHAPE_READERS[file.suffix](stream)
    except OSError as error:
        raise Failure(
            f"data.root cannot be read: {error.strerror}",
            found=str(file.absolute()),
            fix=FIX_DATA_ROOT,
            code=ExitCode.NO_INPUT,
        ) from error
    except (*PARSE_ERRORS, zipfile.BadZipFile, zlib.error) as error:
        raise unusable_file_failure(
            file, f"{file.name} is no whole {file.suffix} file", f"{error}", "a file that loads"
        ) from error
    except (NotImplementedError, RuntimeError) as error:  # another compression, a password
        raise unusable_file_failure(
            file, f"{file.name} cannot be unpacked", f"{error}", "what numpy.savez writes"
        ) from error


def _npz_shapes(stream: BinaryIO) -> dict[str, tuple[int, ...]]:
    with zipfile.ZipFile(stream) as archive:
        found = {}
        for name in archive.namelist():
            if name.endswith(".npy"):
                with archive.open(name) as entry:
                    found[name.removesuffix(".npy")] = _npy_shape(entry, archive.getinfo(name).file_size)
        return found


def _npy_shape(entry: Any, size: int) -> tuple[int, ...]:
    """numpy.lib.format: a magic word, a version, a length, and a dict as Python writes it."""
    start = entry.read(8)
    if start[:6] != b"\x93NUMPY":
        raise ValueError("an entry that numpy did not write")
    length = int.from_bytes(entry.read(2 if start[6] == 1 else 4), "little")
    if length > MAX_NPY_HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes")
    shape = _checked_shape(ast.literal_eval(entry.read(length).decode("utf-8"))["shape"])
    if math.prod(shape) > size:  # numpy would ask for the memory
        raise ValueError(f"the shape {shape}, in {size} bytes")
    return shape


def _safetensors_shapes(stream: BinaryIO) -> dict[str, tuple[int, ...]]:
    length = int.from_bytes(stream.read(8), "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise ValueError(f"a header of {length} bytes")
    header = json.loads(stream.read(length))
    return {name: _checked_shape(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def _checked_shape(shape: Any) -> tuple[int, ...]:
    if not all(type(side) is int and side >= 0 for side in shape):
        raise ValueError(f"the shape {shape}")
    return tuple(shape)


SHAPE_READERS: Final = {".npz": _npz_shapes, ".safetensors": _safetensors_shapes}


def unusable_file_failure(
    file: Path, what: str, found: str, expected: str, fix: str = "write the file again"
) -> Failure:
    """A file whose content is wrong."""
    return Failure(what, found=f"{file}: {found}", expected=expected, fix=fix, code=ExitCode.DATA)


FILE_SUFFIXES: Final = {"npz": (".npz",), "tensor": (".safetensors", ".pt", ".pth")}
# What the pair of arrays is called, in any case: ours, scikit-learn's and keras', sklearn's bunches and torchvision's.
ARRAY_NAME_PAIRS: Final = (
    ("images", "labels"),
    ("x", "y"),
    ("data", "target"),
    ("data", "targets"),
    ("data", "labels"),
)
TRAINING_NAMES: Final = ("train", "training")
VALIDATION_NAMES: Final = ("val", "valid", "validation", "test")
EXPECTED_ARRAY_NAMES: Final = "images and labels (or x and y, data and target), or x_train, y_train, x_test and y_test"

ArrayNamePair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArraySummary:
    """What headers alone tell: the shape of all training images, and whether there is a validation split beside them.

    validation_images: how many images that split has; None where only its data tell.
    """

    shape: tuple[int, ...]
    validation: bool
    validation_images: int | None = None


def find_array_files(root: Path, kind: str) -> tuple[Path, Path | None]:
    """The training file, and the held-out one if it is another: data.root itself, or what lies in it.

    Raises:
        Failure: NO_INPUT, saying what is there instead.
    """
    if os.path.isfile(root):
        return _require_suffix(root, kind), None
    listed = _list_array_files(root, kind)
    training = [path for path in listed if path.stem.lower() in TRAINING_NAMES]
    validation = [path for stem in VALIDATION_NAMES for path in listed if path.stem.lower() == stem]
    if not training and len(listed) == 1:
        return listed[0], None
    if len(training) != 1:
        raise _missing_files_failure(f"data.root holds {len(training) or 'no'} training files", kind, root, listed)
    return training[0], next(iter(validation), None)


def find_array_names(keys: Iterable[str], file: Path) -> tuple[ArrayNamePair, ArrayNamePair | None]:
    """Which arrays of a file are the training images and labels, and which the held-out ones, if they are there too.

    `images` and `labels` alone, or both sides as `x_train` or `train_images` write them.

    Raises:
        Failure: DATA, naming the arrays that are there.
    """
    there = {key.lower(): key for key in keys}
    training = _matching_name_pairs(there, ("", *TRAINING_NAMES))
    if len(training) != 1:
        what = f"{file.name} holds {len(training) or 'no'} pairs of images and labels"
        raise unusable_file_failure(file, what, f"arrays {', '.join(there.values()) or 'none'}", EXPECTED_ARRAY_NAMES)
    return training[0], next(iter(_matching_name_pairs(there, VALIDATION_NAMES)), None)


def _matching_name_pairs(there: Mapping[str, str], sides: Iterable[str]) -> list[ArrayNamePair]:
    found = []
    for side in sides:
        for images, labels in ARRAY_NAME_PAIRS:
            forms = [(images, labels)] if not side else []
            forms += (
                [(f"{images}_{side}", f"{labels}_{side}"), (f"{side}_{images}", f"{side}_{labels}")] if side else []
            )
            found += [(there[x], there[y]) for x, y in forms if x in there and y in there]
    return found


def read_array_summary(root: Path, kind: str) -> ArraySummary | None:
    """What is meant by data.root, from the files' headers; None for .pt files, whose header is a pickle.

    Raises:
        Failure: NO_INPUT for what is not there, DATA for what is no such file.
    """
    training, validation = find_array_files(root, kind)
    if training.suffix not in SHAPE_READERS:
        return None
    shapes = read_shapes(training)
    (images, _), others = find_array_names(shapes, training)
    validation_images = None
    if others is not None and validation is None:
        validation_images = next(iter(shapes[others[0]]), None)
    elif validation is not None and validation.suffix in SHAPE_READERS:
        theirs = read_shapes(validation)
        validation_images = next(iter(theirs[find_array_names(theirs, validation)[0][0]]), None)
    return ArraySummary(
        shape=shapes[images],
        validation=others is not None or validation is not None,
        validation_images=validation_images,
    )


def _require_suffix(path: Path, kind: str) -> Path:
    if path.suffix in FILE_SUFFIXES[kind]:
        return path
    failure = _missing_files_failure(f"data.root has not the ending of data.name {kind}", kind, path, [path])
    other = next((name for name, endings in FILE_SUFFIXES.items() if path.suffix in endings), None)
    failure.fix = f"set data.name to {other}" if other else failure.fix
    raise failure


def _list_array_files(root: Path, kind: str) -> list[Path]:
    try:
        return sorted(
            path for path in root.iterdir() if path.suffix in FILE_SUFFIXES[kind] and not path.name.startswith(".")
        )
    except OSError as error:
        raise _missing_files_failure(f"data.root cannot be read: {error.strerror}", kind, root, [root]) from error


def _missing_files_failure(what: str, kind: str, root: Path, found: list[Path]) -> Failure:
    one, more = FILE_SUFFIXES[kind][0], f" (or {', '.join(FILE_SUFFIXES[kind][1:])})" if FILE_SUFFIXES[kind][1:] else ""
    expected = f"one file *{one}{more}, or a folder with train{one} and, if you have them, val{one} or test{one}"
    listed = ", ".join(str(path.absolute()) for path in found[:5]) or f"no such file in {root.absolute()}"
    return Failure(what, found=listed, expected=expected, fix=FIX_DATA_ROOT, code=ExitCode.NO_INPUT)
