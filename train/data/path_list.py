"""Keeps the paths of millions of files in a few bytes each."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, overload

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
NAMES_PER_CHUNK = 2**16  # names gathered at a time: each letter takes eight bytes meanwhile


@dataclass(frozen=True, slots=True, eq=False)
class PackedPaths(Sequence[str]):
    """Paths below one folder, by number.

    numpy's own arrays of text take four bytes for a letter, and for each path as many letters as the longest has.

    above: that folder, with its slash. letters: the names below it, as the file system has them. starts, lengths: int64
    and int32 [count], where in `letters` each name is; parts of one list share them.
    """

    above: str
    letters: bytes
    starts: Int64Array
    lengths: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> PackedPaths: ...

    def __getitem__(self, place: int | slice) -> str | PackedPaths:
        return self.part(place) if isinstance(place, slice) else self.above + self._name(place)

    def part(self, chosen: Any) -> PackedPaths:
        """Those that `chosen` picks: numbers, a slice, or bool [count]."""
        return replace(self, starts=self.starts[chosen], lengths=self.lengths[chosen])

    def names(self) -> Iterator[str]:
        """What each path is below `above`."""
        return map(self._name, range(len(self)))

    def pieces(self) -> Iterator[bytes | memoryview]:
        """All that the names are made of, for a hash: how long each is, and their letters one behind the other."""
        yield np.ascontiguousarray(self.lengths, "<i4").data
        for first in range(0, len(self), NAMES_PER_CHUNK):
            yield self._joined(slice(first, first + NAMES_PER_CHUNK))

    def _name(self, place: int) -> str:
        start = self.starts[place]
        return os.fsdecode(self.letters[start : start + self.lengths[place]])

    def _joined(self, part: slice) -> bytes | memoryview:
        starts, lengths = self.starts[part], self.lengths[part].astype(np.int64)
        if np.array_equal(starts[1:], starts[:-1] + lengths[:-1]):
            return memoryview(self.letters)[starts[0] : starts[-1] + lengths[-1]]
        moved = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
        letters: bytes = np.frombuffer(self.letters, np.uint8)[np.arange(len(moved)) + moved].tobytes()
        return letters


def pack_paths(paths: Iterable[str], above: str = "") -> PackedPaths:
    """A list of its own. above: what all of them begin with."""
    letters, lengths = bytearray(), array("i")
    for path in paths:
        name = os.fsencode(path[len(above) :])
        letters += name
        lengths.append(len(name))
    found = np.array(lengths, np.int32)
    return PackedPaths(above, bytes(letters), np.cumsum(found, dtype=np.int64) - found, found)


def as_packed_paths(paths: Iterable[Any]) -> PackedPaths:
    """Whatever paths a data set of the user's own has."""
    return paths if isinstance(paths, PackedPaths) else pack_paths(map(str, paths))


def concatenate_paths(first: PackedPaths, second: PackedPaths) -> PackedPaths:
    """Those of both, one behind the other."""
    if first.letters is second.letters and first.above == second.above:
        return replace(
            first,
            starts=np.concatenate([first.starts, second.starts]),
            lengths=np.concatenate([first.lengths, second.lengths]),
        )
    return pack_paths(chain(first, second), first.above if first.above == second.above else "")


def merge_paths(first: PackedPaths, second: PackedPaths) -> tuple[PackedPaths, Int64Array]:
    """Each path of both once, sorted; and where in it those of the first and then those of the second are."""
    every = concatenate_paths(first, second)
    named = list(every)
    order = np.array(sorted(range(len(named)), key=named.__getitem__), np.int64)
    fresh = np.array([True] * len(named[:1]) + [named[one] != named[next_] for one, next_ in pairwise(order)], bool)
    rows = np.empty(len(named), np.int64)
    rows[order] = np.cumsum(fresh) - 1
    return every.part(order[fresh]), rows
