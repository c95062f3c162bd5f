"""From the user's data sets to the same for two: this process reads copies, so that forked ones get them untouched.

A file that is opened at the first read, as PyTorch advises for workers, would else be opened here, and all workers
would share its position: they would read each other's places.
"""

from __future__ import annotations

import gc
import os
import re
import stat
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from pathlib import Path, PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
from torch import Tensor

from entrypoint import ExitCode, Failure

LARGEST: Final = 1000  # of a list or a dict that is looked into: longer ones hold samples, and no open files
MOST: Final = 10_000  # objects that are copied
KEPT: Final = ("train", "torch", "numpy", "pandas", "pyarrow", "PIL")
NESTED: Final = "torch.utils.data"
INERT: Final = (
    *(type(None), int, float, complex, str, bytes, range, slice, list, tuple, dict, set, frozenset, type, Enum),
    *(FunctionType, BuiltinFunctionType, ModuleType, np.ndarray, np.generic, Tensor, PurePath, re.Pattern),
)
NOT_FILES: Final = ("/proc/", "/sys/", "/dev/")
OPEN: Final = Path("/proc/self/fd")

Place = tuple[int, int, int]  # device, inode, position


@dataclass(slots=True, eq=False)
class Apart:
    """Reads `here` in this process, and `elsewhere` in those that are forked from it. Not frozen: see `renew`."""

    here: Any
    elsewhere: Any
    process: int

    @property
    def mine(self) -> Any:
        """What the process that asks may read."""
        return self.here if os.getpid() == self.process else self.elsewhere

    def __len__(self) -> int:
        return len(self.mine)

    def __getitem__(self, row: int) -> Any:
        return self.mine[row]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.mine, name)


def kept_apart(given: Sequence[Any], read: Callable[[Any, int], object]) -> tuple[list[Any], str | None]:
    """Each of them for two, where it can be copied, and its copy can be read; else as it is. And the file that both
    have open all the same, whose position moves as they are read.

    Args:
        read: reads one sample, the first (0) or the last (-1).
    """
    before, copies = positions(), _copied(given)
    made = [
        Apart(copy, one, os.getpid()) if copy is not one and _was_read(read, copy, 0) else one
        for one, copy in zip(given, copies, strict=True)
    ]
    if not any(isinstance(one, Apart) for one in made):  # what they open at their first read both have too
        for one in given:
            _was_read(read, one, 0)
        before = positions()
    return made, _moved(before, [partial(_was_read, read, one, sample) for one in made for sample in (0, -1)])


def renew(given: Sequence[Any]) -> None:
    """Let what the copies have opened be closed, and take new ones. LMDB, for one, does not open what was open in the
    process that its own was forked from.
    """
    kept = [one for one in given if isinstance(one, Apart)]
    for one, copy in zip(kept, _copied([one.elsewhere for one in kept]), strict=True):
        one.here = copy
    gc.collect()  # a data set that holds a method of its own is a circle


def _was_read(read: Callable[[Any, int], object], one: Any, sample: int) -> bool:
    """An error is told by who reads next, with its place."""
    try:
        read(one, sample)
    except Failure as failure:
        if failure.code == ExitCode.STOPPED:  # a signal that came meanwhile
            raise
        return False
    except Exception:
        return False
    return True


def _moved(before: dict[int, Place], reads: Iterable[Callable[[], object]]) -> str | None:
    """The first of these files that is still open, and was read on."""
    for read in reads:
        read()
        now = positions()
        for number, (device, inode, position) in before.items():
            if number in now and now[number][:2] == (device, inode) and now[number][2] != position:
                return path_of(number)
    return None


def _copied(given: Sequence[Any]) -> list[Any]:
    """What they share their copies share too."""
    copier = _Copier()
    try:
        return [copier.of(one) for one in given]
    except (RecursionError, _TooManyError):
        return list(given)


class _TooManyError(Exception):
    """More objects than a data set has open files."""


@dataclass(slots=True)
class _Copier:
    """Copies the objects that a data set is built of, and none of their data: arrays, long lists and what a library or
    the system has made are the same in both. No code of the user's is called.

    opaque: how many objects of unknown kinds, an open file perhaps, are in both.
    """

    known: dict[int, Any] = field(default_factory=dict)
    opaque: int = 0

    def of(self, one: Any) -> Any:
        if id(one) not in self.known:
            self.known[id(one)] = self._new(one)
        return self.known[id(one)]

    def _new(self, one: Any) -> Any:
        if len(self.known) > MOST:
            raise _TooManyError
        if type(one) is MethodType:  # `self.read = self._read_tar`
            return MethodType(one.__func__, self.of(one.__self__))
        if type(one) in (list, tuple, dict) and len(one) <= LARGEST:
            return self._filled(one)
        if not _is_plain(one):
            self.opaque += not isinstance(one, INERT)
            return one
        return self._object(one)

    def _filled(self, one: Any) -> Any:
        if isinstance(one, tuple):
            return tuple(map(self.of, one))
        made = self.known[id(one)] = type(one)()
        if isinstance(one, list):
            made.extend(map(self.of, one))
        else:
            made.update((key, self.of(value)) for key, value in one.items())
        return made

    def _object(self, one: Any) -> Any:
        """The same object where its end would close what both have."""
        kind, before, ends = type(one), self.opaque, hasattr(one, "__del__")
        try:
            made: Any = object.__new__(_unended(kind) if ends else kind)
            self.known[id(one)] = made
            for name, value in getattr(one, "__dict__", {}).copy().items():
                made.__dict__[name] = self.of(value)
            for name in _slots(one):
                with suppress(AttributeError):  # nothing was put there
                    object.__setattr__(made, name, self.of(getattr(one, name)))
            if ends and self.opaque == before:
                made.__class__ = kind
        except TypeError:  # made in C, or with slots where it has an end
            self.opaque += 1
            return one
        return one if ends and self.opaque > before else made


def _unended(kind: type) -> type:
    """What becomes an object of a class with an end, once it is known to be harmless."""
    return type(kind)(kind.__name__, (kind,), {"__slots__": (), "__del__": lambda self: None})


def _is_plain(one: Any) -> bool:
    """Whether it is an object of a class of the user's own, or of torch's nested data sets."""
    if isinstance(one, INERT) or not (hasattr(one, "__dict__") or _slots(one)):
        return False
    module = type(one).__module__
    package = module.partition(".")[0]
    return package not in sys.stdlib_module_names and (package not in KEPT or module.startswith(NESTED))


def _slots(one: Any) -> list[str]:
    """The names that its classes keep beside a `__dict__`."""
    found = []
    for kind in type(one).__mro__:
        names = kind.__dict__.get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{kind.__name__.lstrip('_')}{name}" if private else name)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def positions() -> dict[int, Place]:
    """Of each file that is open to be read only: which it is, and where it is read next."""
    found = {}
    for number in _open():
        with suppress(OSError, KeyError):  # closed meanwhile
            status = os.fstat(number)
            lines = Path(f"/proc/self/fdinfo/{number}").read_text().splitlines()
            told = dict(line.split(":", 1) for line in lines if ":" in line)  # io_uring's has lines without
            reads = int(told["flags"], 8) & os.O_ACCMODE == os.O_RDONLY
            if reads and stat.S_ISREG(status.st_mode) and not path_of(number).startswith(NOT_FILES):
                found[number] = (status.st_dev, status.st_ino, int(told["pos"]))
    return found


def path_of(number: int) -> str:
    """Of an open file."""
    return os.readlink(OPEN / str(number))


def _open() -> list[int]:
    try:
        return [int(name) for name in os.listdir(OPEN)]
    except OSError:  # not Linux
        return []
