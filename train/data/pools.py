"""From a source to pixels on the device: all of them in memory, or read by worker processes a few batches ahead."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import signal
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from entrypoint import ExitCode, Failure, Pulse, die_with_parent
from train.data.broken import Ledger, Tolerant
from train.data.sets import Samples, Source

CHUNK: Final = 128  # images decoded by one thread at a time, which then gives a sign of life
PREFETCH: Final = 2  # batches that each worker process has ready
SHM: Final = "/dev/shm"  # where Linux keeps shared memory; 64 MiB in a container, unless it is told otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of the data. most: how many of its images may be broken; replace: or left out."""

    name: str
    source: Source
    ledger: Ledger
    most: int
    replace: bool

    def tolerant(self) -> Tolerant:
        """A reader with its own knowledge of broken images."""
        return Tolerant(self.source.read, len(self.source.labels), most=self.most, replace=self.replace)


@dataclass(frozen=True, slots=True)
class InMemory:
    """Every image, decoded, on the device. `whole` says which rows hold one; None: all."""

    pixels: Tensor
    labels: Tensor
    whole: npt.NDArray[np.bool_] | None = None

    def take(self, wanted: Iterable[Samples]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Give all images each time, and which rows are meant."""
        for samples in wanted:
            there = samples if self.whole is None else samples[self.whole[samples]]
            rows = on_device(there, self.pixels.device)
            if len(there):
                yield self.pixels, rows, self.labels[rows]


@dataclass(frozen=True, slots=True)
class ByWorkers:
    """Images decoded by `workers` processes (0: by this one), a few batches ahead."""

    side: Side
    workers: int
    device: torch.device

    def take(self, wanted: Iterable[Samples]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """One stream for all that is wanted: the workers are started once, not once per epoch."""
        ready = DataLoader(
            _Reading(self.side),
            batch_size=None,
            sampler=wanted,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            prefetch_factor=PREFETCH if self.workers else None,
            worker_init_fn=_leave_signals_to_the_parent,
            generator=torch.Generator(),  # or each stream would draw from the one that dropout uses
        )
        for read in _received(ready):  # nothing else holds the stream: a failure here ends its workers at once
            if isinstance(read, dict):
                raise Failure(**read)
            pixels, taken, bad = read
            self.side.ledger.add(self.side.name, bad)
            if pixels is not None:
                labels = self.side.source.labels[taken]
                rows = torch.arange(len(labels), device=self.device)
                yield pixels.to(self.device, non_blocking=True), rows, labels.to(self.device, non_blocking=True)


def in_memory(
    side: Side, stored: tuple[int, ...], device: torch.device, threads: int, pulse: Pulse | None = None
) -> InMemory:
    """Decode all images, several at a time: Pillow and numpy let other threads run meanwhile.

    Args:
        stored: the shape of one sample as it is read.

    Raises:
        Failure: DATA or NO_INPUT, naming the images.
    """
    labels = side.source.labels.clone()
    pixels, whole = torch.zeros((0, *stored), dtype=torch.uint8), np.ones(len(labels), bool)
    chunks = np.array_split(np.arange(len(labels)), max(1, -(-len(labels) // CHUNK)))
    with ThreadPoolExecutor(threads) as pool:
        results = pool.map(lambda chunk: side.tolerant().read(chunk), chunks)
        try:
            for chunk, (read, taken, bad) in (pulse or Pulse()).each("data", zip(chunks, results, strict=True)):
                side.ledger.add(side.name, bad)
                rows = chunk if side.replace else taken
                whole[chunk] = np.isin(chunk, rows)
                labels[rows] = side.source.labels[taken]
                if read is not None:
                    pixels = pixels if len(pixels) else read.new_zeros((len(labels), *stored))
                    pixels[rows] = read
        finally:
            results.close()  # type: ignore[attr-defined]  # a generator: what was not begun is not read any more
    return InMemory(pixels.to(device), labels.to(device), None if whole.all() else whole)


def on_device(numbers: npt.NDArray[np.int64], device: torch.device) -> Tensor:
    """A copy that the host does not wait for: from memory that is not pinned, CUDA may wait for its stream."""
    found = torch.from_numpy(numbers)
    return found.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else found


class _Reading(Dataset[Any]):
    """What a worker process does for one array of samples. A Failure comes back as its facts: torch's way of
    handing exceptions on can only make those that take one text."""

    def __init__(self, side: Side) -> None:
        self._source = side.tolerant()

    def __getitem__(self, samples: Samples) -> tuple[Tensor | None, Samples, dict[int, str]] | dict[str, Any]:
        try:
            pixels, taken, bad = self._source.read(samples)
            if pixels is not None and get_worker_info():
                share(pixels)
            return pixels, taken, bad
        except Failure as failure:
            facts = {name: getattr(failure, name) for name in ("what", "fix", "found", "expected", "kept")}
            return facts | {"code": int(failure.code)}


def share(pixels: Tensor) -> None:
    """Move what is on its way to the parent into shared memory, here, where an error can be told: in torch's own thread
    the batch would be lost, and the parent would wait for it for ever.

    Raises:
        Failure: RESOURCE, where /dev/shm is full, or no more files may be open.
    """
    try:
        pixels.share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        shm = os.statvfs(SHM)
        raise Failure(
            "a data worker cannot put its batch into shared memory",
            found=f"{SHM} of {shm.f_blocks * shm.f_frsize >> 20} MiB; one batch takes {pixels.nbytes / 2**20:.1f} MiB; "
            + str(error).splitlines()[0],
            fix="docker run --shm-size=8g (or --ipc=host); or lower data.workers or train.micro_batch_size",
            code=ExitCode.RESOURCE,
        ) from error


def _received(ready: DataLoader[Any]) -> Iterator[Any]:
    """What the workers give. One that is killed while its batch is taken over breaks the connection that it came by:
    torch then does not say that a worker died."""
    try:
        yield from _started(ready)
    except (ConnectionError, EOFError, FileNotFoundError) as error:
        if not ready.num_workers or "in DataLoader worker process" in str(error):  # the source's own
            raise
        raise Failure(
            "a data worker process died",
            found=f"{type(error).__name__} while its batch was taken over",
            fix="start the same command again; if nobody killed it: give more memory, or lower data.workers",
            code=ExitCode.RESOURCE,
        ) from error


def _started(ready: DataLoader[Any]) -> Iterator[Any]:
    stream = iter(ready)
    atexit.unregister(_end_workers)
    atexit.register(_end_workers)  # after torch has registered its own, so that it comes first
    return stream


def _end_workers() -> None:
    """At the end of the program, where a stream was not read to its end: Python sends TERM, which the workers ignore,
    and waits for them for ever."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's raises at the first that ends, and the others would stay
    for worker in multiprocessing.active_children():
        worker.kill()


def _leave_signals_to_the_parent(worker: int) -> None:
    """A scheduler signals every process of a step; a worker that dies of it takes the last save with it."""
    die_with_parent(signal.SIGKILL, os.getppid())  # torch's workers look for their parent each 5 s only
    torch.set_num_threads(1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
