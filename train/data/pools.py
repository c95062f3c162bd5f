"""From a source to pixels on the device, read by worker processes a few batches ahead."""

from __future__ import annotations

import atexit
import itertools
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.util import get_temp_dir
from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from entrypoint import ExitCode, Failure, die_with_parent
from train import keyed
from train.data.broken import Ledger, Tolerant
from train.data.sets import Samples, Source

PREFETCH: Final = 2  # batches that each worker process has ready
Read = tuple[Tensor, Tensor, Tensor]  # pixels [N, *stored], rows int64 [n] of them, labels int64 [n], on the device
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


class _Wanted:
    """The samples of the stream that is read now: workers that stay are given one stream after the other."""

    now: Iterable[Samples] = ()

    def __iter__(self) -> Iterator[Samples]:
        return iter(self.now)


@dataclass(frozen=True, slots=True)
class ByWorkers:
    """Images decoded by `workers` processes (0: by this one), a few batches ahead.

    stay: whether they wait for the next stream, as between evaluations; else they end with theirs.
    """

    side: Side
    workers: int
    device: torch.device
    stay: bool = False
    _kept: list[tuple[DataLoader[Any], _Wanted]] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.workers} worker" + "s" * (self.workers != 1)

    def take(self, wanted: Iterable[Samples]) -> Iterator[Read]:
        """One stream for all that is wanted: the workers are started once, not once per epoch.

        What a source of the user's own draws in them is keyed by the first samples: they are others for another seed
        of the run, another rank and another step to go on from.
        """
        wanted = iter(wanted)
        if (first := next(wanted, None)) is None:
            return
        wanted, seed = itertools.chain([first], wanted), keyed.seed(keyed.WORKERS, *first.tolist())
        try:
            for read in _received(self._ready(wanted, seed)):  # nothing else holds it: a failure ends its workers
                if isinstance(read, dict):
                    raise Failure(**read)
                pixels, taken, bad = read
                self.side.ledger.add(self.side.name, bad)
                if pixels is not None:
                    labels = self.side.source.labels[taken]
                    rows = torch.arange(len(labels), device=self.device)
                    yield pixels.to(self.device, non_blocking=True), rows, on_device(labels, self.device)
        except Exception:
            self._kept.clear()  # nor does this pool
            raise

    def _ready(self, wanted: Iterable[Samples], seed: int) -> DataLoader[Any]:
        if not self._kept:
            source = _Wanted()
            self._kept.append((self._loader(source), source))
        ready, source = self._kept[0]
        source.now = wanted
        ready.generator.manual_seed(seed)
        if not self.stay:
            self._kept.clear()
        return ready

    def _loader(self, wanted: _Wanted) -> DataLoader[Any]:
        if self.workers:
            # `train` has compared them with the processors before it started, and has told a fix.
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
            get_temp_dir()  # theirs too, then: what a worker that is killed leaves there goes with this process
        return DataLoader(
            _Reading(self.side),
            batch_size=None,
            sampler=wanted,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            prefetch_factor=PREFETCH if self.workers else None,
            persistent_workers=self.stay and self.workers > 0,
            worker_init_fn=_serve_the_parent,
            generator=torch.Generator(),  # or each stream would draw from the one that dropout uses
        )


def on_device(numbers: Tensor | npt.NDArray[np.int64], device: torch.device) -> Tensor:
    """A copy that the host does not wait for: from memory that is not pinned, CUDA may wait for its stream."""
    found = numbers if isinstance(numbers, Tensor) else torch.from_numpy(numbers)  # as_tensor takes 2 µs longer
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
            return failure.arguments()


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


def _tell_no_parent_that_left(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Python's thread that hands batches over calls `sys.excepthook` where a rank ends while it takes one: that rank
    says why it ended."""
    if not isinstance(error, (EOFError, ConnectionError)):
        sys.__excepthook__(kind, error, trace)


def _serve_the_parent(worker: int) -> None:
    """Begin a data worker, which is there for its rank alone: it ends with it, and with nothing else.

    A scheduler signals every process of a step; a worker that dies of it takes the last save with it.
    """
    die_with_parent(signal.SIGKILL, os.getppid())  # torch's workers look for their parent each 5 s only
    torch.set_num_threads(1)
    sys.excepthook = _tell_no_parent_that_left
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
