"""From the paths of many files to one buffer of bytes: each rank keeps those of millions of images."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, overload

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
AT_ONCE = 2**16  # names gathered at a time: each letter takes eight bytes meanwhile


@dataclass(frozen=True, slots=True, eq=False)
class Paths(Sequence[str]):
    """Paths below one folder, by number.

    numpy's own arrays of text take four bytes for a letter, and for each path as many letters as the longest has.

    above: that folder, with its slash. letters: the names below it, as the file system has them. starts, lengths: int64
    and int32 [count], where in `letters` each name is; parts of one list share them.
    """

    above: str
    letters: bytes
    starts: Numbers
    lengths: npt.NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> Paths: ...

    def __getitem__(self, place: int | slice) -> str | Paths:
        return self.part(place) if isinstance(place, slice) else self.above + self._name(place)

    def part(self, chosen: Any) -> Paths:
        """Those that `chosen` picks: numbers, a slice, or bool [count]."""
        return replace(self, starts=self.starts[chosen], lengths=self.lengths[chosen])

    def names(self) -> Iterator[str]:
        """What each path is below `above`."""
        return map(self._name, range(len(self)))

    def pieces(self) -> Iterator[bytes | memoryview]:
        """All that the names are made of, for a hash: how long each is, and their letters one behind the other."""
        yield np.ascontiguousarray(self.lengths, "<i4").data
        for first in range(0, len(self), AT_ONCE):
            yield self._joined(slice(first, first + AT_ONCE))

    def _name(self, place: int) -> str:
        start = self.starts[place]
        return os.fsdecode(self.letters[start : start + self.lengths[place]])

    def _joined(self, part: slice) -> bytes | memoryview:
        starts, lengths = self.starts[part], self.lengths[part].astype(np.int64)
        if np.array_equal(starts[1:], starts[:-1] + lengths[:-1]):
            return memoryview(self.letters)[starts[0] : starts[-1] + lengths[-1]]
        moved = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths)
        gathered: bytes = np.frombuffer(self.letters, np.uint8)[np.arange(len(moved)) + moved].tobytes()
        return gathered


def of(paths: Iterable[str], above: str = "") -> Paths:
    """A list of its own. above: what all of them begin with."""
    letters, lengths = bytearray(), array("i")
    for path in paths:
        name = os.fsencode(path[len(above) :])
        letters += name
        lengths.append(len(name))
    found = np.array(lengths, np.int32)
    return Paths(above, bytes(letters), np.cumsum(found, dtype=np.int64) - found, found)


def packed(paths: Iterable[Any]) -> Paths:
    """Whatever paths a data set of the user's own has."""
    return paths if isinstance(paths, Paths) else of(map(str, paths))


def joined(first: Paths, second: Paths) -> Paths:
    """Those of both, one behind the other."""
    if first.letters is second.letters and first.above == second.above:
        return replace(
            first,
            starts=np.concatenate([first.starts, second.starts]),
            lengths=np.concatenate([first.lengths, second.lengths]),
        )
    return of(chain(first, second), first.above if first.above == second.above else "")


def merged(first: Paths, second: Paths) -> tuple[Paths, Numbers]:
    """Each path of both once, sorted; and where in it those of the first and then those of the second are."""
    every = joined(first, second)
    named = list(every)
    order = np.array(sorted(range(len(named)), key=named.__getitem__), np.int64)
    fresh = np.array([True] * len(named[:1]) + [named[one] != named[next_] for one, next_ in pairwise(order)], bool)
    rows = np.empty(len(named), np.int64)
    rows[order] = np.cumsum(fresh) - 1
    return every.part(order[fresh]), rows
