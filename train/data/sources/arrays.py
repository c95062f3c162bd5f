"""Holds the entry of `npz` and `tensor`, finds their array files, and reads shapes and dtypes without torch."""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from errno import EINVAL
from pathlib import Path
from pickle import UnpicklingError
from tokenize import TokenError
from typing import IO, TYPE_CHECKING, Any, Final

from safetensors import SafetensorError, safe_open

from entrypoint import ExitCode, Failure
from train import files
from train.config.batches import SplitCounts, count_splits
from train.config.schema import DataConfig
from train.data import split_checks
from train.data.registry import DataSource
from train.files import bad_data_failure
from train.tasks import TASKS

if TYPE_CHECKING:
    import numpy as np

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
    import numpy as np  # the entry is loaded without it

    first = np.lib.format.read_magic(entry) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    return read(entry)


def _safetensors_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    with safe_open(file, framework="numpy") as archive:
        names = archive.keys()
        return {name: tuple(archive.get_slice(name).get_shape()) for name in names}


SHAPE_READERS: Final = {".npz": _npz_shapes, ".safetensors": _safetensors_shapes}


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
    return bad_data_failure(file, what, reason, "arrays, as numpy or torch saves them")


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
# The names of files and arrays, by split.
SPLIT_NAMES: Final = {
    "training": ("train", "training"),
    "validation": ("val", "valid", "validation"),
    "test": ("test",),
}
EXPECTED_ARRAY_NAMES: Final = "images and labels (or x and y, data and target), or x_train, y_train, x_test and y_test"

ArrayNamePair = tuple[str, str]
ArrayLocation = tuple[Path, ArrayNamePair]  # the file, and the names of its images and labels


def find_array_files(root: Path, data_name: str) -> dict[str, Path]:
    """The files of the splits: `training`, and `validation` and `test` if they have files of their own.

    The files are data.root itself, or lie in it.

    Raises:
        Failure: NO_INPUT, with a list of the files in data.root.
    """
    if os.path.isfile(root):
        if root.suffix in FILE_SUFFIXES[data_name]:
            return {"training": root}
        what = f"data.root has not the ending of data.name {data_name}"
        other = next((name for name, endings in FILE_SUFFIXES.items() if root.suffix in endings), None)
        raise _missing_files_failure(what, data_name, root, [root], f"set data.name to {other}" if other else None)
    paths = list_array_files(root, data_name)
    by_split = {
        split: [path for name in names for path in paths if path.stem.lower() == name]
        for split, names in SPLIT_NAMES.items()
    }
    training = by_split["training"]
    if not training and len(paths) == 1:
        return {"training": paths[0]}
    if len(training) != 1:
        raise _missing_files_failure(f"data.root holds {len(training) or 'no'} training files", data_name, root, paths)
    return {split: files[0] for split, files in by_split.items() if files}


def find_array_names(keys: Iterable[str], file: Path) -> dict[str, ArrayNamePair]:
    """The names of images and labels in a file, by split.

    A file has `images` and `labels` alone, or several splits named like `x_train` or `train_images`.

    Raises:
        Failure: DATA, naming the arrays of the file.
    """
    names = {key.lower(): key for key in keys}
    pairs = {split: _matching_name_pairs(names, split_names) for split, split_names in SPLIT_NAMES.items()}
    training = _matching_name_pairs(names, [""]) + pairs["training"]
    if len(training) != 1:
        what = f"{file.name} holds {len(training) or 'no'} pairs of images and labels"
        raise bad_data_failure(file, what, f"arrays {', '.join(names.values()) or 'none'}", EXPECTED_ARRAY_NAMES)
    return {split: matching[0] for split, matching in (pairs | {"training": training}).items() if matching}


def locate_splits(
    data: DataConfig, read_names: Callable[[Path], Iterable[str]]
) -> tuple[dict[str, ArrayLocation], tuple[str, ...]]:
    """Where the arrays of each split are, and notes. A file of its own is taken before arrays in the training file.

    Test images are for validation if nothing else is, as with folders. read_names: reads the names of all arrays in a
    file.

    Raises:
        Failure: as `find_array_files`, `find_array_names` and `split_checks.refuse_second_splits`.
    """
    split_files = find_array_files(Path(data.root), data.name)
    file, names = split_files["training"], {path: [*read_names(path)] for path in split_files.values()}
    located = {split: (file, pair) for split, pair in find_array_names(names[file], file).items()}
    for split, path in split_files.items():
        located[split] = (path, find_array_names(names[path], path)["training"])
    notes = []
    if "test" in located:
        path, pair = located["test"]
        words = f"{' and '.join(pair)} of {path.name}"
        if "validation" in located or data.fold is not None:
            split_checks.refuse_second_splits(data, test=words)
        else:
            located["validation"] = located.pop("test")
            notes.append(
                f"{words} are the validation split, since there is no other: it chooses the best checkpoint. With "
                "validation arrays they would be kept for one score at the end"
            )
    used = {(path, name) for path, pair in located.values() for name in pair}
    for path in names:
        if unread := [name for name in names[path] if (path, name) not in used]:
            notes.append(f"{path.name} holds more arrays, which are not read: {', '.join(unread)}")
    if Path(data.root).is_dir():
        others = [path.name for path in list_array_files(Path(data.root), data.name) if path not in names]
        notes += [f"{data.root} holds more files, which are not read: {', '.join(others)}"] if others else []
    return located, tuple(notes)


def _matching_name_pairs(names: Mapping[str, str], split_names: Iterable[str]) -> list[ArrayNamePair]:
    pairs = []
    for split in split_names:
        for images, labels in ARRAY_NAME_PAIRS:
            of_split = [(f"{images}_{split}", f"{labels}_{split}"), (f"{split}_{images}", f"{split}_{labels}")]
            forms = of_split if split else [(images, labels)]
            pairs += [(names[x], names[y]) for x, y in forms if x in names and y in names]
    return pairs


def read_image_shapes(data: DataConfig) -> dict[str, tuple[int, ...]] | None:
    """The shape of the images of each split, from the headers; None if there is a .pt file, whose header is a pickle.

    Raises:
        Failure: NO_INPUT for a missing file, DATA for a file of another format.
    """
    split_files = find_array_files(Path(data.root), data.name)
    if any(file.suffix not in SHAPE_READERS for file in split_files.values()):
        return None
    shapes = {file: read_shapes(file) for file in split_files.values()}
    located, _ = locate_splits(data, lambda file: shapes[file])
    return {split: shapes[file][images] for split, (file, (images, _)) in located.items()}


def list_array_files(root: Path, data_name: str) -> list[Path]:
    """The files in a folder that have an ending of data.name, sorted. Raises Failure: NO_INPUT."""
    try:
        return sorted(
            path for path in root.iterdir() if path.suffix in FILE_SUFFIXES[data_name] and not path.name.startswith(".")
        )
    except OSError as error:
        raise _missing_files_failure(f"data.root cannot be read: {error.strerror}", data_name, root, [root]) from error


def _missing_files_failure(what: str, data_name: str, root: Path, paths: list[Path], fix: str | None = None) -> Failure:
    suffix, *others = FILE_SUFFIXES[data_name]
    alternatives = f" (or {', '.join(others)})" if others else ""
    folder = f"a folder with train{suffix} and, if you have them, val{suffix} or test{suffix}"
    expected = f"one file *{suffix}{alternatives}, or {folder}"
    listed = ", ".join(str(path.absolute()) for path in paths[:5]) or f"no such file in {root.absolute()}"
    fix = fix or files.did_you_mean(root) + FIX_DATA_ROOT
    return Failure(what, found=listed, expected=expected, fix=fix, code=ExitCode.NO_INPUT)


def count(data: DataConfig) -> SplitCounts | None:
    """The sizes of the splits that are taken from the training arrays; others are counted when they are opened."""
    if (shapes := read_image_shapes(data)) is None:
        return None
    return count_splits(next(iter(shapes["training"]), 0), data, has_validation="validation" in shapes)


def has_validation(data: DataConfig) -> bool:
    return "validation" in (read_image_shapes(data) or {})


KEYS: Final = frozenset({"root", "val_fraction", "test_fraction", "fold"})

NPZ: Final = DataSource(
    reader="arrays:open_arrays",
    count=count,
    has_validation=has_validation,
    keys=KEYS,
    origin="files",
    tasks=tuple(TASKS),
)
TENSOR: Final = NPZ  # its files differ in their endings, and in the axis of the channels
