"""Keeps lists of image files: the paths of millions of files take a few bytes each.

This module does not import torch.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Letters = npt.NDArray[np.uint8]
NAMES_PER_CHUNK = 2**16  # gathered at a time: each letter needs eight bytes of temporary memory


@dataclass(frozen=True, slots=True, eq=False)
class PackedPaths(Sequence[str]):
    """Paths below one folder, by number.

    numpy's arrays of text need four bytes for a letter, and make every path as long as the longest one.

    above: that folder, with its slash. letters: the names below it, uint8, as bytes of the file system; the ranks of a
    machine may share them. starts, lengths: int64 and int32 [count], where each name is in `letters`; parts of one list
    share `letters`. are_listed: the names are those that the user wrote, in a table.
    """

    above: str
    letters: Letters
    starts: Int64Array
    lengths: npt.NDArray[np.int32]
    are_listed: bool = False

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # `part` takes slices
        return self.above + self.name(index)

    def part(self, selection: Any) -> PackedPaths:
        """The paths that `selection` selects: indices, a slice, or bool [count]."""
        return replace(self, starts=self.starts[selection], lengths=self.lengths[selection])

    def names(self) -> Iterator[str]:
        """Each path relative to `above`."""
        return map(self.name, range(len(self)))

    def name(self, index: int) -> str:
        """One path relative to `above`."""
        start = self.starts[index]
        return os.fsdecode(self.letters[start : start + self.lengths[index]].tobytes())

    def pieces(self) -> Iterator[memoryview]:
        """The bytes to hash: the lengths of all names, then their letters."""
        yield np.ascontiguousarray(self.lengths, "<i4").data
        for first in range(0, len(self), NAMES_PER_CHUNK):
            yield self._joined(slice(first, first + NAMES_PER_CHUNK))

    def _joined(self, part: slice) -> memoryview:
        starts, lengths = self.starts[part], self.lengths[part].astype(np.int64)
        if np.array_equal(starts[1:], starts[:-1] + lengths[:-1]):
            return self.letters[starts[0] : starts[-1] + lengths[-1]].data
        moved = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
        letters: Letters = self.letters[np.arange(len(moved)) + moved]
        return letters.data


def pack_paths(paths: Iterable[str], above: str = "") -> PackedPaths:
    """Pack paths into a new list. above: the prefix of all of them."""
    letters, lengths = bytearray(), array("i")
    for path in paths:
        name = os.fsencode(path[len(above) :])
        letters += name
        lengths.append(len(name))
    return from_lengths(above, np.frombuffer(bytes(letters), np.uint8), np.array(lengths, np.int32))


def from_lengths(above: str, letters: Letters, lengths: npt.NDArray[np.int32]) -> PackedPaths:
    """The paths whose names lie one after another in `letters`. Arguments: as the fields of `PackedPaths`."""
    return PackedPaths(above, letters, np.cumsum(lengths, dtype=np.int64) - lengths, lengths)


def as_packed_paths(paths: Iterable[Any]) -> PackedPaths:
    """The paths of any data set as PackedPaths."""
    return paths if isinstance(paths, PackedPaths) else pack_paths(map(str, paths))


def concatenate_paths(first: PackedPaths, second: PackedPaths) -> PackedPaths:
    """The paths of the first list, then those of the second."""
    if first.letters is second.letters and first.above == second.above:
        return replace(
            first,
            starts=np.concatenate([first.starts, second.starts]),
            lengths=np.concatenate([first.lengths, second.lengths]),
        )
    return pack_paths(chain(first, second), first.above if first.above == second.above else "")


def merge_paths(first: PackedPaths, second: PackedPaths) -> tuple[PackedPaths, Int64Array]:
    """All paths, sorted, each once; and the rows of the first list, then those of the second."""
    every = concatenate_paths(first, second)
    names = list(every)
    order = np.array(sorted(range(len(names)), key=names.__getitem__), np.int64)
    is_first = np.array(
        [True] * len(names[:1]) + [names[current] != names[following] for current, following in pairwise(order)], bool
    )
    rows = np.empty(len(names), np.int64)
    rows[order] = np.cumsum(is_first) - 1
    return every.part(order[is_first]), rows
