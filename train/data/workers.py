"""Reads batches in DataLoader worker processes a few batches ahead, and skips unreadable images.

The same image replaces an unreadable one on any rank and in any worker.
"""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.util import get_temp_dir
from types import TracebackType
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from entrypoint import ExitCode, Failure, die_with_parent
from train import rng
from train.data.splits import SampleIndices, SampleSource

SampleReader = Callable[[SampleIndices], Tensor]
MAX_LISTED_IMAGES: Final = 10


class SkipUnreadable:
    """Reads samples of one split. A broken image is one whose read fails with DATA; any other failure ends the run.

    In training the next readable sample by number takes a broken one's place, with its own label and moved as the
    broken one would have been: the batch keeps its size, and nothing depends on who found out first. In evaluation
    a broken image is left out.
    """

    def __init__(self, read: SampleReader, count: int, *, most: int, replace: bool) -> None:
        self._read, self._count, self._most, self._replace = read, count, most, replace
        self.bad: dict[int, str] = {}

    def read(self, samples: SampleIndices) -> tuple[Tensor | None, SampleIndices, dict[int, str]]:
        """(pixels, the samples they are of, path and reason of each newly found broken one); None for no pixels.

        Raises:
            Failure: DATA, where more than `most` are broken. With `most` 0 the first one's own.
        """
        before = set(self.bad)
        while True:
            taken = self.instead(samples)
            if len(taken) == 0:
                return None, taken, self._new(before)
            try:
                return self._read(taken), taken, self._new(before)
            except Failure as failure:
                self._look_at_each(taken, failure)

    def instead(self, samples: SampleIndices) -> SampleIndices:
        """Those that are read for these samples, as far as the broken ones are known."""
        if not self._replace:
            return samples[[int(sample) not in self.bad for sample in samples]]
        return np.array([self._next(int(sample)) for sample in samples], np.int64)

    def _next(self, sample: int) -> int:
        while sample in self.bad:
            sample = (sample + 1) % self._count
        return sample

    def _look_at_each(self, samples: SampleIndices, failure: Failure) -> None:
        """Find out which ones the failure meant."""
        if self._most == 0 or failure.code != ExitCode.DATA:
            raise failure
        found = {sample: text for sample in np.unique(samples) if (text := self._reason(sample))}
        if not found:
            raise failure
        self.bad.update({int(sample): text for sample, text in found.items()})
        if len(self.bad) > self._most:
            raise too_many_unreadable_failure(self.bad.values(), self._most)
        if len(self.bad) == self._count:
            raise too_many_unreadable_failure(self.bad.values(), self._count - 1)

    def _reason(self, sample: np.int64) -> str | None:
        try:
            self._read(np.array([sample]))
        except Failure as failure:
            if failure.code != ExitCode.DATA:
                raise
            return failure.found or failure.what
        return None

    def _new(self, before: set[int]) -> dict[int, str]:
        return {sample: text for sample, text in self.bad.items() if sample not in before}


class UnreadableLog:
    """The broken images that this rank has met, in both splits: each logged once, and all of them counted."""

    def __init__(self, most: int, say: Callable[[str], None]) -> None:
        self._most, self._say = most, say
        self.known: dict[tuple[str, int], str] = {}

    def __iter__(self) -> Iterator[str]:
        """Path and reason of each."""
        return iter(self.known.values())

    @property
    def told(self) -> str | None:
        """How many were skipped, for the end of a run; None where all could be read."""
        images = "1 broken image" if len(self.known) == 1 else f"{len(self.known):,} broken images"
        return f"{images} skipped (data.max_bad_images: {self._most})" if self.known else None

    def add(self, split: str, bad: Mapping[int, str]) -> None:
        """Count the broken images of a split, by sample.

        Raises:
            Failure: DATA, where there are more than data.max_bad_images.
        """
        self.merge({(split, sample): text for sample, text in bad.items()})

    def merge(self, known: Mapping[tuple[str, int], str]) -> None:
        """The same with what other ranks know."""
        for key in sorted(known.keys() - self.known.keys()):
            self.known[key] = known[key]
            if len(self.known) <= self._most:
                self._say(f"skipped a broken image ({len(self.known)} of at most {self._most}): {known[key]}")
        if len(self.known) > self._most:
            raise too_many_unreadable_failure(self.known.values(), self._most)


def too_many_unreadable_failure(texts: Iterable[str], most: int) -> Failure:
    """More broken images than data.max_bad_images allows, or than leave one to be read; `texts` name them."""
    listed = sorted(texts)
    more = f"; and {len(listed) - MAX_LISTED_IMAGES} more" if len(listed) > MAX_LISTED_IMAGES else ""
    return Failure(
        f"more than {most} image {'file' if most == 1 else 'files'} cannot be read (data.max_bad_images)",
        found="; ".join(listed[:MAX_LISTED_IMAGES]) + more,
        fix="replace or delete these files (`train data check` finds all), or raise data.max_bad_images",
        code=ExitCode.DATA,
    )


PREFETCH_FACTOR: Final = 2  # batches that each worker process has ready
# Pixels [N, *stored], rows int64 [n] of them, labels int64 [n], on the device.
PixelBatch = tuple[Tensor, Tensor, Tensor]
Request = TypeVar("Request")  # what samples are read for, which comes back with their pixels: a micro batch, a number
SHARED_MEMORY_FOLDER: Final = "/dev/shm"  # where Linux keeps shared memory; 64 MiB in a container by default


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The training or the validation samples. most: how many images may be broken. replace: whether another image
    takes a broken one's place; else it is left out."""

    name: str
    source: SampleSource
    ledger: UnreadableLog
    most: int
    replace: bool

    def tolerant(self) -> SkipUnreadable:
        """A reader with its own knowledge of broken images."""
        return SkipUnreadable(self.source.read, len(self.source.labels), most=self.most, replace=self.replace)


class _CurrentStreamSampler:
    """The requests of the current stream: workers that stay are given one stream after the other."""

    requests: Iterable[tuple[Any, SampleIndices]] = ()

    def __iter__(self) -> Iterator[tuple[Any, SampleIndices]]:
        return iter(self.requests)


@dataclass(frozen=True, slots=True)
class WorkerLoader:
    """Images decoded by `workers` processes (0: by this one), a few batches ahead.

    stay: whether the workers wait for the next stream, as between evaluations; else they end with the stream.
    """

    split: Split
    workers: int
    device: torch.device
    stay: bool = False
    _kept: list[tuple[DataLoader[Any], _CurrentStreamSampler]] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.workers} worker" + "s" * (self.workers != 1)

    def read(self, requests: Iterable[tuple[Request, SampleIndices]]) -> Iterator[tuple[Request, PixelBatch]]:
        """One stream for all requests: the workers are started once, not once per epoch. A request goes through the
        worker with its samples, so that nothing here depends on the order in which batches come back.

        Random numbers that a user's own source draws in the workers are seeded by the first request's samples, which
        differ by the seed of the run, the rank and the step that a resumed run begins with.
        """
        requests = iter(requests)
        if (first := next(requests, None)) is None:
            return
        requests, seed = itertools.chain([first], requests), rng.derive_seed(rng.WORKERS, *first[1].tolist())
        try:
            # Nothing else holds this iterator: a failure ends its workers.
            for batch in _iterate_batches(self._dataloader(requests, seed)):
                if isinstance(batch, dict):
                    raise Failure(**batch)
                request, pixels, samples, bad = batch
                self.split.ledger.add(self.split.name, bad)
                if pixels is not None:
                    labels = self.split.source.labels[samples]
                    rows = torch.arange(len(labels), device=self.device)
                    yield request, (pixels.to(self.device, non_blocking=True), rows, to_device(labels, self.device))
        except Exception:
            self._kept.clear()  # nor does this loader
            raise

    def _dataloader(self, requests: Iterable[tuple[Any, SampleIndices]], seed: int) -> DataLoader[Any]:
        """For these requests: the one whose workers stayed, or a new one."""
        if not self._kept:
            sampler = _CurrentStreamSampler()
            self._kept.append((self._new_dataloader(sampler), sampler))
        dataloader, sampler = self._kept[0]
        sampler.requests = requests
        dataloader.generator.manual_seed(seed)
        if not self.stay:
            self._kept.clear()
        return dataloader

    def _new_dataloader(self, sampler: _CurrentStreamSampler) -> DataLoader[Any]:
        if self.workers:
            # `train` has compared them with the processors before it started, and has told a fix.
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
            get_temp_dir()  # theirs too, then: what a worker that is killed leaves there goes with this process
        return DataLoader(
            _SplitDataset(self.split),
            batch_size=None,
            sampler=sampler,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            prefetch_factor=PREFETCH_FACTOR if self.workers else None,
            persistent_workers=self.stay and self.workers > 0,
            worker_init_fn=_init_worker,
            generator=torch.Generator(),  # or each stream would draw from the one that dropout uses
        )


def to_device(numbers: Tensor | npt.NDArray[np.int64], device: torch.device) -> Tensor:
    """A copy that the host does not wait for: from memory that is not pinned, CUDA may wait for its stream."""
    found = numbers if isinstance(numbers, Tensor) else torch.from_numpy(numbers)  # as_tensor takes 2 µs longer
    return found.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else found


class _SplitDataset(Dataset[Any]):
    """What a worker process does for one request. A Failure comes back as its arguments: torch can only rebuild
    exceptions that take one text."""

    def __init__(self, split: Split) -> None:
        self._source = split.tolerant()

    def __getitem__(
        self, request: tuple[Any, SampleIndices]
    ) -> tuple[Any, Tensor | None, SampleIndices, dict[int, str]] | dict[str, Any]:
        try:
            pixels, samples, bad = self._source.read(request[1])
            if pixels is not None and get_worker_info():
                move_to_shared_memory(pixels)
            return request[0], pixels, samples, bad
        except Failure as failure:
            return failure.arguments()


def move_to_shared_memory(pixels: Tensor) -> None:
    """Move what is on its way to the parent into shared memory, here, where an error can be told: in torch's own thread
    the batch would be lost, and the parent would wait for it for ever.

    Raises:
        Failure: RESOURCE, where /dev/shm is full, or no more files may be open.
    """
    try:
        pixels.share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        shm = os.statvfs(SHARED_MEMORY_FOLDER)
        raise Failure(
            "a data worker cannot put its batch into shared memory",
            found=f"{SHARED_MEMORY_FOLDER} of {shm.f_blocks * shm.f_frsize >> 20} MiB; one batch takes "
            f"{pixels.nbytes / 2**20:.1f} MiB; " + str(error).splitlines()[0],
            fix="docker run --shm-size=8g (or --ipc=host); or lower data.workers or train.micro_batch_size",
            code=ExitCode.RESOURCE,
        ) from error


def _iterate_batches(ready: DataLoader[Any]) -> Iterator[Any]:
    """What the workers give. One that is killed while its batch is taken over breaks the connection that it came by:
    torch then does not say that a worker died."""
    try:
        yield from _start_workers(ready)
    except (ConnectionError, EOFError, FileNotFoundError) as error:
        if not ready.num_workers or "in DataLoader worker process" in str(error):  # the source's own
            raise
        raise Failure(
            "a data worker process died",
            found=f"{type(error).__name__} while its batch was taken over",
            fix="start the same command again; if nobody killed it: give more memory, or lower data.workers",
            code=ExitCode.RESOURCE,
        ) from error


def _start_workers(ready: DataLoader[Any]) -> Iterator[Any]:
    stream = iter(ready)
    atexit.unregister(_kill_workers)
    atexit.register(_kill_workers)  # after torch has registered its own, so that it comes first
    return stream


def _kill_workers() -> None:
    """At the end of the program, where a stream was not read to its end: Python sends TERM, which the workers ignore,
    and waits for them for ever."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's raises at the first that ends, and the others would stay
    for worker in multiprocessing.active_children():
        worker.kill()


def _ignore_lost_parent(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Python's thread that hands batches over calls `sys.excepthook` where a rank ends while it takes one: that rank
    says why it ended."""
    if not isinstance(error, (EOFError, ConnectionError)):
        sys.__excepthook__(kind, error, trace)


def _init_worker(worker: int) -> None:
    """Begin a data worker, which is there for its rank alone: it ends with it, and with nothing else.

    A scheduler signals every process of a step; a worker that dies of it takes the last save with it.
    """
    die_with_parent(signal.SIGKILL, os.getppid())  # torch's workers look for their parent each 5 s only
    torch.set_num_threads(1)
    sys.excepthook = _ignore_lost_parent
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
