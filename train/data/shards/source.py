"""Reads images out of tar shards by their number, in large reads ahead of the workers that decode them.

The process that hands out the batches knows which come next. Threads of it read the runs of these batches into memory
that it shares with the data workers; each worker finds the bytes of its images there. An image that was not read ahead
is read alone, from a shard that stays open.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import threading
import time
import zlib
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from entrypoint import ExitCode, Failure, list_some, print_message, shell_command
from train.config.schema import DataConfig
from train.data import decode
from train.data.decode import ImageBytes
from train.data.image_table import find_other_separator
from train.data.preprocessing import configured_preprocessing
from train.data.registry import refuse_wrong_class_count
from train.data.shape import COLOR_CHANNELS
from train.data.shard_labels import LabelKind
from train.data.shards import index as shard_index
from train.data.shards.index import ShardIndex
from train.data.shards.members import BLOCK
from train.data.shards.order import ChosenEntries, Int64Array, RemainingEntries, Selection, ShardLayout, TrainingRuns
from train.data.sources.shards import refuse_taken_splits
from train.data.splits import LABELS_AT_A_TIME, DataSplits, EncodedImageSource, SampleIndices, configured_image_shape
from train.distributed.shared_memory import SINGLE_RANK, HostRanks
from train.files import one_line
from train.tasks import AUTO, CLASSIFICATION, TASKS
from train.tasks.labels import ENCODERS, missing_validation_warnings

GATHERED_AT_A_TIME: Final = 2**16  # labels
NAME_BYTES: Final = 100  # of a tar header, which is the block before the data
MAX_USUAL_CLASSES: Final = 20  # more with fewer than two images each are captions
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


@dataclass(slots=True)
class ReadAhead:
    """What the process that decodes images of a split finds in the shared memory, for one request at a time."""

    runs: SharedRuns | None = None
    is_decided: bool = False  # whether to read ahead: the first requests say whether that helps
    offsets: Mapping[int, int] = field(default_factory=dict)  # of the samples of the request whose images are read now

    def read(self, sample: int, length: int) -> bytes | None:
        """The header and the bytes of an image; None if they were not read ahead."""
        offset = self.offsets.get(sample, NOWHERE)
        return None if offset == NOWHERE or self.runs is None else self.runs.read(offset, length)


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


@dataclass(frozen=True, slots=True, eq=False)
class ShardFiles(Sequence[str]):
    """The names of images as SHARD:MEMBER, for messages and tables. They are read from the shards: the index has none.

    ahead: what was read ahead of them.
    """

    layout: ShardLayout
    ahead: ReadAhead = field(default_factory=ReadAhead)

    def __len__(self) -> int:
        return len(self.layout.selection)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]  # nobody takes slices
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        shard, entry = self._locate(index)
        try:
            return _member_name(shard, self._read(shard, entry, 0))
        except OSError:
            return f"{shard}:image {index}"

    def image(self, index: int) -> ImageBytes:
        """The bytes of an image, as they were indexed.

        Raises:
            Failure: DATA for other bytes; NO_INPUT or IO if the shard cannot be read.
        """
        shard, entry = self._locate(index)
        folder, length = self.layout.folder, int(entry["length"])
        try:
            block = self.ahead.read(index, BLOCK + length) or self._read(shard, entry, length)
            is_intact = _is_intact(block, entry)
            if not is_intact and self.layout.copies is not None:
                block = self._read_original(shard, entry, length)
                is_intact = _is_intact(block, entry)
                if is_intact:
                    self._remove_damaged_copy(self.layout.copies / shard)
        except OSError as error:
            raise decode.unreadable_image_failure(folder / shard, index, error) from error
        name, data = _member_name(shard, block), block[BLOCK:]
        if not is_intact:
            raise Failure(
                f"image {index} is not what was indexed",
                found=f"{folder / name}: {'cut short' if len(data) < length else 'its bytes have another crc32'}",
                fix=f"copy the shard again; or, if it is right: {shell_command('train data index', folder)}; or skip "
                "the image with data.max_bad_images=1",
                code=ExitCode.DATA,
            )
        return ImageBytes(str(folder / name), data)

    def _locate(self, index: int) -> tuple[str, np.void]:
        """The shard that holds an image, and its entry."""
        entry = int(self.layout.selection.entries(index))
        return self.layout.shard_of(entry), self.layout.entries[entry]

    def _read(self, shard: str, entry: np.void, length: int) -> bytes:
        """The header of an image, and so many bytes of it. Raises OSError."""
        path, copy = self.layout.paths(shard)
        try:
            return _read_at(OPEN_SHARDS.handle(path, copy), entry, length)
        except OSError:
            if copy is None:
                raise
            return self._read_original(shard, entry, length)

    def _read_original(self, shard: str, entry: np.void, length: int) -> bytes:
        """As `_read`, from data.root: the node's own disk may damage a copy. Raises OSError."""
        with open(self.layout.folder / shard, "rb", buffering=0) as file:
            return _read_at(file.fileno(), entry, length)

    def _remove_damaged_copy(self, copy: Path) -> None:
        """Let nobody open this copy again. The process that removes it, one of all, says so."""
        with suppress(OSError):
            copy.unlink()
            line = f"warning: data.stage: {copy} is damaged; its images are read from {self.layout.folder} from now on"
            print_message(line, sys.stderr)


def _read_at(handle: int, entry: np.void, length: int) -> bytes:
    return os.pread(handle, BLOCK + length, int(entry["offset"]) - BLOCK)


def _is_intact(block: bytes, entry: np.void) -> bool:
    return zlib.crc32(block[BLOCK:]) == int(entry["crc32"])


def _member_name(shard: str, block: bytes) -> str:
    return f"{shard}:{os.fsdecode(block[:NAME_BYTES].split(bytes(1), 1)[0])}"


@dataclass(frozen=True, slots=True)
class ShardSource(EncodedImageSource):
    """The images of a split in tar shards, and their classes, as integers of any width."""

    is_mapped: ClassVar[bool] = True
    paths: ShardFiles

    def image(self, sample: int) -> ImageBytes:
        """The bytes of an image. Raises Failure: as `ShardFiles.image`."""
        return self.paths.image(sample)

    def runs(self) -> TrainingRuns | None:
        return self.paths.layout.training_runs()

    def content(self, root: str) -> Iterator[memoryview]:
        """The crc32 of each image."""
        layout, count = self.paths.layout, len(self.labels)
        for first in range(0, count, LABELS_AT_A_TIME):
            entries = layout.selection.entries(np.arange(first, min(first + LABELS_AT_A_TIME, count)))
            yield layout.entries["crc32"][entries].data

    @contextmanager
    def reading(self, requests: Iterable[tuple[Any, SampleIndices]]) -> Iterator[Iterable[tuple[Any, SampleIndices]]]:
        """The requests with the offsets of their samples in memory that is shared with the workers, which are forked
        later. Samples that lie far from each other, as in a balanced order, are read one by one."""
        requests, ahead = iter(requests), self.paths.ahead
        first, count = list[tuple[Any, SampleIndices]](), 0
        while count <= AHEAD and (request := next(requests, None)) is not None:
            first.append(request)
            count += len(request[1])
        if first and not ahead.is_decided:
            ahead.is_decided, layout = True, self.paths.layout
            samples = np.concatenate([samples for _, samples in first])
            needed = len(np.unique(layout.runs_of(samples)))
            if len(samples) >= MIN_USES * needed:  # twice as many runs: the next ones are read while these are used
                ahead.runs = SharedRuns(layout, min(2 * needed + 16, MAX_BYTES // SLOT_BYTES))
        requests = chain(first, requests)
        if ahead.runs is None:
            yield requests
            return
        try:
            yield located_requests(ahead.runs, requests)
        finally:
            ahead.runs.stop()

    def unpack(self, request: Any) -> Any:
        """The request, whose samples are found in the shared memory from now on."""
        if not isinstance(request, Located):
            return request
        self.paths.ahead.offsets = dict(zip(request.samples.tolist(), request.offsets.tolist(), strict=True))
        return request.request

    def release(self, request: Any) -> Any:
        """The request, whose samples need their shared memory no longer."""
        if not isinstance(request, Located):
            return request
        if self.paths.ahead.runs is not None:
            self.paths.ahead.runs.release(request.samples)
        return request.request


def open_shards(data: DataConfig, host: HostRanks = SINGLE_RANK, *_: object) -> DataSplits:
    """All splits.

    Raises:
        Failure: as `shard_index.read_index`, `refuse_wrong_entries`, `refuse_other_shards` and `refuse_taken_splits`;
            DATA for another number of classes.
    """

    def compare() -> None:
        index = shard_index.read_index(Path(data.root))
        shard_index.refuse_wrong_entries(index)
        shard_index.refuse_other_shards(index.folder, index.shards)
        refuse_taken_splits(data, index.shards)

    # Once on each machine, whose failure ends all ranks: on a parallel file system, a call for each shard.
    host.first(compare)
    index = shard_index.read_index(Path(data.root))
    _refuse_other_task(data, index.labels)
    if TASKS[index.labels.task].has_classes:
        facts = str(index.folder / shard_index.FACTS_FILE)
        refuse_wrong_class_count(data, len(index.labels.classes), "classes", facts, " of the shards")
    ends = [index.bounds(split)[1] for split in shard_index.SPLITS]
    validation, test = np.arange(ends[0], ends[1]), np.arange(ends[1], ends[2])
    training = RemainingEntries(ends[0])
    chosen, chosen_test, notes = shard_index.split_training(index, data)
    left_out = np.sort(np.concatenate([chosen, chosen_test]))
    if len(left_out):
        training = RemainingEntries(ends[0], left_out=left_out, numbers=left_out - np.arange(len(left_out)))
        validation = chosen if len(chosen) else validation
        test = chosen_test if len(chosen_test) else test
    layout = ShardLayout(
        folder=index.folder,
        shards=tuple(shard.name for shard in index.shards),
        entries=index.entries,
        shard_starts=np.cumsum([0, *(shard.images for shard in index.shards)]),
        run_starts=index.run_starts,
        selection=training,
    )

    def open_source(selection: Selection, labels: npt.NDArray[Any]) -> ShardSource:
        return ShardSource(
            ShardFiles(replace(layout, selection=selection)),
            torch.from_numpy(labels),
            data.image_size,
            configured_preprocessing(data),
            COLOR_CHANNELS[data.color],
        )

    def open_chosen(entries: Int64Array) -> ShardSource:
        return open_source(ChosenEntries(entries), index.labels.values(index.entries["label"][entries]))

    task, classes = index.labels.task, index.labels.classes
    sources = open_source(training, _training_labels(index, training, host)), open_chosen(validation)
    warnings = tuple[str, ...]()
    if len(chosen):
        warnings = missing_validation_warnings(task, classes, *(source.labels.numpy() for source in sources))
    warnings += (*_name_warnings(index),)
    return DataSplits(
        training=sources[0],
        validation=sources[1],
        test=open_chosen(test) if len(test) else None,
        classes=classes,
        shape=configured_image_shape(data),
        has_own_validation=ends[1] > ends[0],
        notes=notes,
        warnings=warnings,
        task=task,
        target=ENCODERS[task].scale(sources[0].labels, partial(_one_number_failure, index)),
    )


def _name_warnings(index: ShardIndex) -> Iterator[str]:
    """Warnings of shards that are trained on though their names say less than those of others, and of labels that are
    probably captions, or several labels in one text."""
    if unnamed := shard_index.unnamed_training_shards(index.shards):
        yield (
            f"shards are trained on whose names have no word train, as others have: {list_some(unnamed)}. fix: call "
            "them train-... or val-..., and index them again"
        )
    if index.labels.task != CLASSIFICATION:
        return
    classes, images = index.labels.classes, len(index.entries)
    if len(classes) > max(MAX_USUAL_CLASSES, images / 2):
        yield f"{len(classes):,} classes for {images:,} images: captions? fix: write the class of each image (KEY.cls)"
    elif (separated := find_other_separator(classes)) and separated[0] != "spaces":
        yield (
            f"the labels hold {separated[0]}: several labels of one image? ({one_line(separated[1])}). fix: write "
            'lists of them into KEY.json: {"labels": ["cat", "sofa"]}'
        )


def _refuse_other_task(data: DataConfig, labels: LabelKind) -> None:
    if data.task not in (AUTO, labels.task):
        raise Failure(
            "the shards were indexed for another task",
            found=f"data.task: {data.task}, and an index for {labels.task}",
            fix="leave data.task out, or index them again: "
            + shell_command("train data index", data.root, f"data.task={data.task}"),
            code=ExitCode.USAGE,
        )


def _one_number_failure(index: ShardIndex, number: str) -> Failure:
    return Failure(
        "all images to train on have the same number",
        found=f"{number} in {index.folder}",
        fix="give the training images different numbers, or another data.val_fraction",
        code=ExitCode.DATA,
    )


def with_copies(splits: DataSplits, copies: Path) -> DataSplits:
    """The same splits of shards, read from the copies in this folder as soon as these appear."""

    return splits.map(
        lambda shards: replace(  # type: ignore[type-var]
            shards,
            paths=ShardFiles(replace(shards.paths.layout, copies=copies)),  # type: ignore[attr-defined]
        )
    )


def _training_labels(index: ShardIndex, training: RemainingEntries, host: HostRanks) -> npt.NDArray[Any]:
    """As `SampleSource.labels`: those of the mapped index, or in memory that the ranks of a machine share."""
    column = index.entries["label"]
    if index.labels.task == CLASSIFICATION and len(training) == training.count:
        return column[: training.count]

    def gather() -> npt.NDArray[Any]:
        no_values = index.labels.values(column[:0])
        labels = np.empty((len(training), *no_values.shape[1:]), no_values.dtype)
        for first in range(0, len(training), GATHERED_AT_A_TIME):
            part = slice(first, min(first + GATHERED_AT_A_TIME, len(training)))
            labels[part] = index.labels.values(column[training.entries(np.arange(part.start, part.stop))])
        return labels

    return host.first_shared(gather)
