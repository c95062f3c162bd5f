"""Finds the files of an array data set, and reads their shapes and dtypes without torch."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EINVAL
from pathlib import Path
from pickle import UnpicklingError
from tokenize import TokenError
from typing import IO, Any, Final

import numpy as np
from safetensors import SafetensorError, safe_open

from entrypoint import ExitCode, Failure
from train import files

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
    TokenError,  # of numpy, for a damaged header
)


def read_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each array, by name; read from the headers alone.

    Raises:
        Failure: DATA for a file that is broken, NO_INPUT for one that cannot be opened.
    """
    with translate_read_errors(file):
        return SHAPE_READERS[file.suffix](file)


def _npz_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    shapes = {}
    with file.open("rb") as stream, zipfile.ZipFile(stream) as archive:
        for name in archive.namelist():
            if name.endswith(".npy"):
                with archive.open(name) as entry:
                    shape, _, _ = read_npy_header(entry)
                size = archive.getinfo(name).file_size
                if min(shape, default=0) < 0 or math.prod(shape) > size:  # numpy would ask for the memory
                    raise ValueError(f"the shape {shape}, in {size} bytes")
                shapes[name.removesuffix(".npy")] = shape
    return shapes


def read_npy_header(entry: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and dtype.

    Version 3 of the format differs from version 2 only in the names of fields, which plain arrays do not have.
    """
    first = np.lib.format.read_magic(entry) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    return read(entry)


def _safetensors_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    with safe_open(file, framework="numpy") as archive:
        names = archive.keys()
        return {name: tuple(archive.get_slice(name).get_shape()) for name in names}


SHAPE_READERS: Final = {".npz": _npz_shapes, ".safetensors": _safetensors_shapes}


def unusable_file_failure(
    file: Path, what: str, actual: str, expected: str, fix: str = "write the file again"
) -> Failure:
    """The Failure for a file whose content is wrong."""
    return Failure(what, found=f"{file}: {actual}", expected=expected, fix=fix, code=ExitCode.DATA)


@contextmanager
def translate_read_errors(file: Path) -> Iterator[None]:
    """Translate the errors of numpy, safetensors and torch into a Failure that names the file."""
    try:
        files.open_regular_file(file).close()
        yield
    except UnpicklingError as error:
        raise _pickled_objects_failure(file, str(error)) from error
    except (*PARSE_ERRORS, RuntimeError, SafetensorError, zipfile.BadZipFile, zlib.error) as error:
        if "DefaultCPUAllocator" in str(error):  # out of memory
            raise
        if "allow_pickle" in str(error) or "Object arrays" in str(error):
            raise _pickled_objects_failure(file, str(error)) from error
        raise _damaged_file_failure(file, error) from error
    except OSError as error:
        if error.errno in (None, EINVAL):  # raised by torch and zipfile for a truncated file
            raise _damaged_file_failure(file, error) from error
        raise Failure(
            f"data.root cannot be read: {error.strerror or error}",
            found=str(file.absolute()),
            fix=FIX_DATA_ROOT,
            code=ExitCode.NO_INPUT,
        ) from error


def _damaged_file_failure(file: Path, error: Exception) -> Failure:
    reason = str(error).split("\n")[0] or type(error).__name__
    what = f"{file.name} is no whole {file.suffix} file"
    return unusable_file_failure(file, what, reason, "arrays, as numpy or torch saves them")


def _pickled_objects_failure(file: Path, reason: str) -> Failure:
    """Loading a pickle runs what its author wrote into it."""
    return Failure(
        f"{file.name} holds pickled objects, which are not loaded",
        found=f"{file}: {' '.join(reason.split())[:200]}",
        expected="plain arrays of numbers",
        fix="save images as uint8 or float32 and labels as int64: numpy.savez, or safetensors.torch.save_file",
        code=ExitCode.SECURITY,
    )


FILE_SUFFIXES: Final = {"npz": (".npz",), "tensor": (".safetensors", ".pt", ".pth")}
# Names of the images and the labels, in any case: ours, those of scikit-learn and keras, of
# scikit-learn's bunches, and of torchvision.
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
    """What the headers say: the shape of all training images, and whether there is a validation split.

    validation_images: how many images that split has; None if the headers do not say it.
    """

    shape: tuple[int, ...]
    validation: bool
    validation_images: int | None = None


def find_array_files(root: Path, data_name: str) -> tuple[Path, Path | None]:
    """The training file, and the validation file if there is a separate one.

    The files are data.root itself, or lie in it.

    Raises:
        Failure: NO_INPUT, with a list of the files in data.root.
    """
    if os.path.isfile(root):
        return _require_suffix(root, data_name), None
    paths = _list_array_files(root, data_name)
    training = [path for path in paths if path.stem.lower() in TRAINING_NAMES]
    validation = [path for stem in VALIDATION_NAMES for path in paths if path.stem.lower() == stem]
    if not training and len(paths) == 1:
        return paths[0], None
    if len(training) != 1:
        raise _missing_files_failure(f"data.root holds {len(training) or 'no'} training files", data_name, root, paths)
    return training[0], next(iter(validation), None)


def find_array_names(keys: Iterable[str], file: Path) -> tuple[ArrayNamePair, ArrayNamePair | None]:
    """The names of the training images and labels in a file, and those of the validation split if it has one.

    A file has `images` and `labels` alone, or both splits named like `x_train` or `train_images`.

    Raises:
        Failure: DATA, naming the arrays of the file.
    """
    names = {key.lower(): key for key in keys}
    training = _matching_name_pairs(names, ("", *TRAINING_NAMES))
    if len(training) != 1:
        what = f"{file.name} holds {len(training) or 'no'} pairs of images and labels"
        raise unusable_file_failure(file, what, f"arrays {', '.join(names.values()) or 'none'}", EXPECTED_ARRAY_NAMES)
    return training[0], next(iter(_matching_name_pairs(names, VALIDATION_NAMES)), None)


def _matching_name_pairs(names: Mapping[str, str], split_names: Iterable[str]) -> list[ArrayNamePair]:
    pairs = []
    for split in split_names:
        for images, labels in ARRAY_NAME_PAIRS:
            if split:
                forms = [(f"{images}_{split}", f"{labels}_{split}"), (f"{split}_{images}", f"{split}_{labels}")]
            else:
                forms = [(images, labels)]
            pairs += [(names[x], names[y]) for x, y in forms if x in names and y in names]
    return pairs


def read_array_summary(root: Path, data_name: str) -> ArraySummary | None:
    """Summarize the files of data.root from their headers; None for .pt files, whose header is a pickle.

    Raises:
        Failure: NO_INPUT for a missing file, DATA for a file of another format.
    """
    training, validation = find_array_files(root, data_name)
    if training.suffix not in SHAPE_READERS:
        return None
    shapes = read_shapes(training)
    (images, _), validation_names = find_array_names(shapes, training)
    validation_images = None
    if validation_names is not None and validation is None:
        validation_images = next(iter(shapes[validation_names[0]]), None)
    elif validation is not None and validation.suffix in SHAPE_READERS:
        validation_shapes = read_shapes(validation)
        validation_images = next(iter(validation_shapes[find_array_names(validation_shapes, validation)[0][0]]), None)
    return ArraySummary(
        shape=shapes[images],
        validation=validation_names is not None or validation is not None,
        validation_images=validation_images,
    )


def _require_suffix(path: Path, data_name: str) -> Path:
    if path.suffix in FILE_SUFFIXES[data_name]:
        return path
    failure = _missing_files_failure(f"data.root has not the ending of data.name {data_name}", data_name, path, [path])
    other = next((name for name, endings in FILE_SUFFIXES.items() if path.suffix in endings), None)
    failure.fix = f"set data.name to {other}" if other else failure.fix
    raise failure


def _list_array_files(root: Path, data_name: str) -> list[Path]:
    try:
        return sorted(
            path for path in root.iterdir() if path.suffix in FILE_SUFFIXES[data_name] and not path.name.startswith(".")
        )
    except OSError as error:
        raise _missing_files_failure(f"data.root cannot be read: {error.strerror}", data_name, root, [root]) from error


def _missing_files_failure(what: str, data_name: str, root: Path, paths: list[Path]) -> Failure:
    suffix, *others = FILE_SUFFIXES[data_name]
    alternatives = f" (or {', '.join(others)})" if others else ""
    folder = f"a folder with train{suffix} and, if you have them, val{suffix} or test{suffix}"
    expected = f"one file *{suffix}{alternatives}, or {folder}"
    listed = ", ".join(str(path.absolute()) for path in paths[:5]) or f"no such file in {root.absolute()}"
    return Failure(what, found=listed, expected=expected, fix=FIX_DATA_ROOT, code=ExitCode.NO_INPUT)
