"""Reads runs of tar shards ahead, into memory that the data workers share: large reads, and none for each image.

The process that hands out the batches knows which come next. Threads of it read the runs of these batches; each worker
finds the bytes of its images in memory that it has inherited.
"""

from __future__ import annotations

import math
import mmap
import os
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from train.data.shard_members import BLOCK
from train.data.shard_runs import ShardLayout
from train.data.splits import SampleIndices

MAX_OPEN_SHARDS: Final = 512  # of a thread
SLOT_BYTES: Final = 5 * 2**18  # 1.25 MiB: a run, whose last image passes its end
AHEAD: Final = 2048  # samples
READ_THREADS: Final = 8
MAX_BYTES: Final = 4 * 2**30
MIN_USES: Final = (
    1.5  # images of a run that batches near each other take: below it, reading runs would waste most bytes
)
NOWHERE: Final = -1
LOOK_FOR_COPY_S: Final = 2.0  # between two looks for the copy of an open shard: no system call for each image
Int64Array = npt.NDArray[np.int64]
Request = TypeVar("Request")


class _OpenFile:
    """A file that is closed when nothing refers to it, as when its thread has ended. Raises OSError."""

    __slots__ = ("handle",)

    def __init__(self, path: str) -> None:
        self.handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # at the end of Python `os` may be gone
        if hasattr(self, "handle"):
            close(self.handle)


class OpenShards(threading.local):
    """The shards that this thread has open, the least recently used first. A forked worker opens its own."""

    def __init__(self) -> None:
        self._handles: OrderedDict[str, _OpenFile] = OrderedDict()
        self._next_looks: dict[str, float] = {}  # when to look for the copy of a shard; never, once it is open
        self._process = os.getpid()

    def handle(self, path: str, copy: str | None = None) -> int:
        """The open file of a shard, until the next call in this thread.

        copy: where a complete copy of it may appear at any time (data.stage), which is then read instead.

        Raises:
            OSError: neither can be opened.
        """
        if self._process != os.getpid():
            self._handles, self._next_looks, self._process = OrderedDict(), {}, os.getpid()
        if copy is not None and time.monotonic() >= self._next_looks.get(path, 0.0):
            self._look_for_copy(path, copy)
        if path not in self._handles:
            self._handles[path] = _OpenFile(path)
        self._handles.move_to_end(path)
        if len(self._handles) > MAX_OPEN_SHARDS:
            closed, _ = self._handles.popitem(last=False)
            self._next_looks.pop(closed, None)
        return self._handles[path].handle

    def _look_for_copy(self, path: str, copy: str) -> None:
        try:
            self._handles[path], self._next_looks[path] = _OpenFile(copy), math.inf
        except OSError:  # not copied yet, or not at all
            self._next_looks[path] = time.monotonic() + LOOK_FOR_COPY_S


OPEN_SHARDS: Final = OpenShards()


@dataclass(frozen=True, slots=True, kw_only=True)
class Located(Generic[Request]):
    """A request, and where in the shared memory the headers of its samples begin, int64 [n]; NOWHERE: read it."""

    request: Request
    samples: SampleIndices
    offsets: Int64Array


class SharedRuns:
    """The runs that were read ahead. Made before the workers are forked; only the process that made it may fill it."""

    def __init__(self, layout: ShardLayout, slots: int) -> None:
        self._layout = layout
        self._memory = mmap.mmap(-1, slots * SLOT_BYTES)
        self._free = list(range(slots))
        self._slots: OrderedDict[int, int] = OrderedDict()  # of each run, the least recently used first
        self._pending: dict[int, Future[bool]] = {}
        self._uses = Counter[int]()
        self._pool: ThreadPoolExecutor | None = None

    def read(self, offset: int, length: int) -> bytes:
        """The bytes from an offset in the memory on."""
        return self._memory[offset : offset + length]

    def read_ahead(self, samples: SampleIndices) -> None:
        """Begin to read the runs of these samples, which stay until `release`."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(READ_THREADS, "read shards")
        for run in self._runs(samples):
            self._uses[run] += 1
            if run in self._slots:
                self._slots.move_to_end(run)
            elif self._fits(run) and (slot := self._take_slot()) is not None:
                self._slots[run] = slot
                self._pending[run] = self._pool.submit(self._fill, run, slot)

    def locate(self, samples: SampleIndices) -> Int64Array:
        """Where the headers of these samples are; waits until their runs are read."""
        of_run = dict[int, int]()
        for run in self._runs(samples):
            if run in self._pending and not self._pending.pop(run).result():
                self._free.append(self._slots.pop(run))  # reading the image says why
            slot = self._slots.get(run)
            of_run[run] = NOWHERE if slot is None else slot * SLOT_BYTES - self._bounds(run)[0]
        layout = self._layout
        shifts = np.array([of_run[run] for run in layout.runs_of(samples).tolist()], np.int64)
        offsets = layout.entries["offset"][layout.selection.entries(samples)].astype(np.int64)
        return np.where(shifts == NOWHERE, NOWHERE, offsets - BLOCK + shifts)

    def release(self, samples: SampleIndices) -> None:
        """These samples have been decoded."""
        for run in self._runs(samples):
            self._uses[run] -= 1
            if not self._uses[run]:
                del self._uses[run]

    def stop(self) -> None:
        """Forget the requests that were not decoded; others may follow."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        self._free += [self._slots.pop(run) for run in self._pending]
        self._pool, self._pending, self._uses = None, {}, Counter()

    def _runs(self, samples: SampleIndices) -> list[int]:
        runs: list[int] = np.unique(self._layout.runs_of(samples)).tolist()
        return runs

    def _bounds(self, run: int) -> tuple[int, int]:
        """Where the header of a run's first image begins in its shard, and where its last image ends."""
        first, end = self._layout.run_bytes(run)
        return first - BLOCK, end

    def _fits(self, run: int) -> bool:
        begin, end = self._bounds(run)
        return end - begin <= SLOT_BYTES

    def _take_slot(self) -> int | None:
        if self._free:
            return self._free.pop()
        unused = next((run for run in self._slots if run not in self._uses and run not in self._pending), None)
        return None if unused is None else self._slots.pop(unused)

    def _fill(self, run: int, slot: int) -> bool:
        """Whether all bytes could be read."""
        begin, end = self._bounds(run)
        shard = self._layout.shard_of(int(self._layout.run_starts[run]))
        try:
            handle = OPEN_SHARDS.handle(*self._layout.paths(shard))
            with memoryview(self._memory)[slot * SLOT_BYTES : slot * SLOT_BYTES + end - begin] as target:
                return os.preadv(handle, [target], begin) == end - begin
        except OSError:
            return False


class ReadAhead:
    """What the process that decodes images of a split finds in the shared memory, for one request at a time."""

    def __init__(self) -> None:
        self.runs: SharedRuns | None = None
        self.is_decided = False
        self._offsets_in_memory: dict[int, int] = {}

    def decide(self, layout: ShardLayout, requests: Sequence[tuple[Any, SampleIndices]]) -> None:
        """Make the shared memory, if the first requests are of samples near each other: for twice as many runs as
        these need, since the next ones are read while they are used."""
        self.is_decided = True
        samples = np.concatenate([samples for _, samples in requests])
        needed = len(np.unique(layout.runs_of(samples)))
        if len(samples) >= MIN_USES * needed:
            self.runs = SharedRuns(layout, min(2 * needed + 16, MAX_BYTES // SLOT_BYTES))

    def use(self, located: Located[Any]) -> None:
        """From now on images of this request are read."""
        self._offsets_in_memory = dict(zip(located.samples.tolist(), located.offsets.tolist(), strict=True))

    def read(self, sample: int, length: int) -> bytes | None:
        """The header and the bytes of an image; None if they were not read ahead."""
        offset = self._offsets_in_memory.get(sample, NOWHERE)
        return None if offset == NOWHERE or self.runs is None else self.runs.read(offset, length)


def first_requests(requests: Iterable[tuple[Any, SampleIndices]]) -> Iterator[tuple[Any, SampleIndices]]:
    """The requests of the first AHEAD samples."""
    count = 0
    for request, samples in requests:
        yield request, samples
        count += len(samples)
        if count > AHEAD:
            return


def located_requests(
    shared: SharedRuns, requests: Iterable[tuple[Any, SampleIndices]]
) -> Iterator[tuple[Located[Any], SampleIndices]]:
    """The requests with the offsets of their samples, whose runs are read while earlier requests are handed out."""
    waiting, count = deque[tuple[Any, SampleIndices]](), 0
    for request, samples in requests:
        shared.read_ahead(samples)
        waiting.append((request, samples))
        count += len(samples)
        while count > AHEAD:
            first, of_first = waiting.popleft()
            count -= len(of_first)
            yield Located(request=first, samples=of_first, offsets=shared.locate(of_first)), of_first
    for first, of_first in waiting:
        yield Located(request=first, samples=of_first, offsets=shared.locate(of_first)), of_first
