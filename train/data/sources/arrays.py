"""Holds the entry of `npz` and `tensor`, finds their array files, and reads the header of an array without torch."""

from __future__ import annotations

import os
from pathlib import Path
from tokenize import TokenError
from typing import IO, TYPE_CHECKING, Any, Final

from entrypoint import ExitCode, Failure
from train import files
from train.config.schema import DataConfig
from train.data.registry import DataSource
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


def read_npy_header(entry: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran order, and dtype.

    Version 3 of the format differs from version 2 only in the names of fields, which plain arrays do not have.
    """
    import numpy as np  # the entry is loaded without it

    first = np.lib.format.read_magic(entry) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    return read(entry)


FILE_SUFFIXES: Final = {"npz": (".npz",), "tensor": (".safetensors", ".pt", ".pth")}
# The names of files and arrays, by split.
SPLIT_NAMES: Final = {
    "training": ("train", "training"),
    "validation": ("val", "valid", "validation"),
    "test": ("test",),
}


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


def count(data: DataConfig) -> None:
    """Every task calls this, so it only looks for the files; opening them counts."""
    find_array_files(Path(data.root), data.name)


KEYS: Final = frozenset({"root", "val_fraction", "test_fraction", "fold"})

NPZ: Final = DataSource(
    reader="arrays:open_arrays",
    count=count,
    keys=KEYS,
    origin="files",
    tasks=tuple(TASKS),
)
TENSOR: Final = NPZ  # its files differ in their endings, and in the axis of the channels
