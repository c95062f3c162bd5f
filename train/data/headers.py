"""From an .npz or .safetensors file to the names and shapes of its arrays, by their headers alone. No torch."""

from __future__ import annotations

import ast
import json
import math
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, Final

from entrypoint import ExitCode, Failure

LARGEST, LARGEST_NPY = 10_000_000, 10_000  # bytes: more is no header; numpy's own limit
FIX: Final = "set data.root to the file, or to the folder that holds it (in a container: mount it)"
BROKEN: Final = (ValueError, KeyError, TypeError, AttributeError, IndexError, SyntaxError, EOFError, RecursionError,
                 OverflowError)  # fmt: skip


def shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each array, by name; read from the headers alone.

    Raises:
        Failure: DATA for a file that is broken, NO_INPUT for one that cannot be opened.
    """
    try:
        with file.open("rb") as stream:
            return SHAPES[file.suffix](stream)
    except OSError as error:
        raise Failure(
            f"data.root cannot be read: {error.strerror}", found=str(file.absolute()), fix=FIX, code=ExitCode.NO_INPUT
        ) from error
    except (*BROKEN, zipfile.BadZipFile, zlib.error) as error:
        raise unusable(file, f"{file.name} is no whole {file.suffix} file", f"{error}", "a file that loads") from error
    except (NotImplementedError, RuntimeError) as error:  # another compression, a password
        raise unusable(file, f"{file.name} cannot be unpacked", f"{error}", "what numpy.savez writes") from error


def _of_npz(stream: BinaryIO) -> dict[str, tuple[int, ...]]:
    with zipfile.ZipFile(stream) as archive:
        found = {}
        for name in archive.namelist():
            if name.endswith(".npy"):
                with archive.open(name) as entry:
                    found[name.removesuffix(".npy")] = _of_npy(entry, archive.getinfo(name).file_size)
        return found


def _of_npy(entry: Any, size: int) -> tuple[int, ...]:
    """numpy.lib.format: a magic word, a version, a length, and a dict as Python writes it."""
    start = entry.read(8)
    if start[:6] != b"\x93NUMPY":
        raise ValueError("an entry that numpy did not write")
    length = int.from_bytes(entry.read(2 if start[6] == 1 else 4), "little")
    if length > LARGEST_NPY:
        raise ValueError(f"a header of {length} bytes")
    shape = _checked(ast.literal_eval(entry.read(length).decode("utf-8"))["shape"])
    if math.prod(shape) > size:  # numpy would ask for the memory
        raise ValueError(f"the shape {shape}, in {size} bytes")
    return shape


def _of_safetensors(stream: BinaryIO) -> dict[str, tuple[int, ...]]:
    length = int.from_bytes(stream.read(8), "little")
    if not 2 <= length <= LARGEST:
        raise ValueError(f"a header of {length} bytes")
    header = json.loads(stream.read(length))
    return {name: _checked(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def _checked(shape: Any) -> tuple[int, ...]:
    if not all(type(side) is int and side >= 0 for side in shape):
        raise ValueError(f"the shape {shape}")
    return tuple(shape)


SHAPES: Final = {".npz": _of_npz, ".safetensors": _of_safetensors}


def unusable(file: Path, what: str, found: str, expected: str, fix: str = "write the file again") -> Failure:
    """A file whose content is wrong."""
    return Failure(what, found=f"{file}: {found}", expected=expected, fix=fix, code=ExitCode.DATA)
