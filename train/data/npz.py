"""From an .npz file to its arrays: mapped where they lie in it as in memory, so that ranks share them; else read."""

from __future__ import annotations

import math
import struct
import warnings
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from train.data import headers

BEGINNINGS: Final = (b"P", b"\x93", b"\x80")  # of a zip archive, of one array, and of a pickle, which is refused as one
READERS: Final = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
LENGTHS: Final = struct.Struct("<26xHH")  # at the end of a local header: of the name and of what follows it
CHUNK: Final = 2**20
LEAST_AXES: Final = 3  # of images: labels have fewer, and are read
WORTH_A_WORD: Final = 2**28  # bytes of memory of each rank
Pick = Callable[[Iterable[str]], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where the numbers of an array lie in the file, [shape] of a type of this machine's."""

    offset: int
    shape: tuple[int, ...]
    kind: np.dtype[Any]


def load(file: Path, pick: Pick) -> dict[str, Tensor]:
    """The arrays that `pick` chooses of their names, each compared with its checksum.

    Raises:
        ValueError, KeyError, OSError, zipfile.BadZipFile, zlib.error: for what is no such file, or is damaged.
        Failure: as `headers.shapes`.
    """
    with file.open("rb") as stream:  # numpy would leave a broken file open
        if stream.read(1) not in BEGINNINGS:  # numpy would call a text a pickle
            raise ValueError("no archive of numpy's")
        stream.seek(0)
        archive = np.load(stream, allow_pickle=False)
        if isinstance(archive, np.ndarray):
            raise ValueError("one array, and no archive of several")
        headers.shapes(file)  # refuses arrays larger than their bytes, for which numpy would ask for memory
        return {name: _as_tensor(name, _array(archive, stream, name)) for name in pick(archive.files)}


def copied(file: Path, names: Iterable[str]) -> int:
    """Bytes of those arrays that `load` has to read into memory, for each process anew."""
    with file.open("rb") as stream, zipfile.ZipFile(stream) as archive:
        there = {entry.filename: entry.file_size for entry in archive.infolist()}
        return sum(there.get(f"{name}.npy", 0) for name in names if _place(archive, stream, name) is None)


def _array(archive: Any, stream: BinaryIO, name: str) -> Any:
    place = _place(archive.zip, stream, name)
    if place is None:
        return archive[name]
    with archive.zip.open(f"{name}.npy") as entry:
        while entry.read(CHUNK):  # which compares the checksum
            pass
    return np.memmap(stream, place.kind, "r", place.offset, place.shape)


def _place(archive: zipfile.ZipFile, stream: BinaryIO, name: str) -> _Place | None:
    """None where the bytes are not those that memory would hold; and for what numpy will refuse."""
    entry = archive.NameToInfo.get(f"{name}.npy")
    if entry is None or entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & 1:  # with a password
        return None
    with archive.open(entry) as content:
        read = READERS.get(np.lib.format.read_magic(content))
        if read is None:
            return None
        shape, fortran, kind = read(content)
        begins = content.tell()
    whole = 0 < math.prod(shape) * kind.itemsize <= entry.file_size - begins
    if fortran or not kind.isnative or kind.kind not in "biuf" or len(shape) < LEAST_AXES or not whole:
        return None
    stream.seek(entry.header_offset)
    local = stream.read(LENGTHS.size)
    return _Place(offset=entry.header_offset + len(local) + sum(LENGTHS.unpack(local)) + begins, shape=shape, kind=kind)


def _as_tensor(name: str, array: npt.NDArray[Any]) -> Tensor:
    """Without a copy, unless its bytes lie in another machine's order."""
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} has the type {array.dtype}, and no numbers")
    with warnings.catch_warnings(action="ignore"):  # of what is mapped: nobody writes to it
        return torch.from_numpy(np.asarray(array, array.dtype.newbyteorder("=")))
