"""Reads batches in DataLoader worker processes a few batches ahead, and skips unreadable images.

The same image replaces an unreadable one on any rank and in any worker.
"""

from __future__ import annotations

import atexit
import gc
import itertools
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.queues import Queue
from multiprocessing.util import get_temp_dir
from types import TracebackType
from typing import Any, Final, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from entrypoint import (
    ExitCode,
    Failure,
    die_with_parent,
    engines,
    list_some,
    resource_limit_failure,
    shell_command,
)
from train import rng
from train.data.augmenter import Augmenter
from train.data.batch import Batch, Collate
from train.data.gpu_decoding import EncodedBatch, GpuDecoder, for_reading
from train.data.process_pool import START_METHOD
from train.data.splits import SampleIndices, SampleSource

SampleReader = Callable[[SampleIndices], Tensor]
Item = TypeVar("Item")
MAX_LISTED_IMAGES: Final = 10
SAMPLES_PER_BLOCK: Final = 4096  # whose numbers are drawn and copied to the device at once
DEAD_WORKER_FIX: Final = (
    "start the same command again; if nobody killed it: give more memory or shared memory "
    "(docker run --shm-size=8g or --ipc=host), raise the limit on open files (ulimit -n), or lower data.workers"
)


class SkipUnreadable:
    """Reads samples of one split. A broken image is one whose read fails with DATA; any other failure ends the run.

    In training the next readable sample by number replaces a broken one, with its own label and the augmentation of
    the broken one. So the batch keeps its size, and does not depend on which reader met the broken image first.
    In evaluation a broken image is left out.
    """

    def __init__(self, read: SampleReader, count: int, *, most: int, replace: bool) -> None:
        self._read, self._count, self._most, self._replace = read, count, most, replace
        self.bad: dict[int, str] = {}

    def read(
        self, samples: SampleIndices, read: SampleReader | None = None
    ) -> tuple[Tensor | None, SampleIndices, dict[int, str]]:
        """(pixels or None, the samples that were read, path and reason of each newly detected broken one).

        read: reads these samples in another way, such as another part of each image.

        Raises:
            Failure: DATA if more than `most` are broken. With `most` 0, the failure of the first broken image.
        """
        before, pixels, taken = set(self.bad), None, self.instead(samples)
        while pixels is None and len(taken):
            try:
                pixels = (read or self._read)(taken)
            except Failure as failure:
                self._look_at_each(taken, failure)
                taken = self.instead(samples)
        return pixels, taken, {sample: text for sample, text in self.bad.items() if sample not in before}

    def instead(self, samples: SampleIndices) -> SampleIndices:
        """The samples to read for these, given the broken ones detected so far."""
        if not self._replace:
            return samples[[int(sample) not in self.bad for sample in samples]]
        return np.array([self._next(int(sample)) for sample in samples], np.int64)

    def _next(self, sample: int) -> int:
        while sample in self.bad:
            sample = (sample + 1) % self._count
        return sample

    def _look_at_each(self, samples: SampleIndices, failure: Failure) -> None:
        """Read each sample alone, to detect which ones are broken."""
        if self._most == 0 or failure.code != ExitCode.DATA:
            raise failure
        reasons = dict[int, str]()
        for sample in np.unique(samples).tolist():
            try:
                self._read(np.array([sample]))
            except Failure as broken:
                if broken.code != ExitCode.DATA:
                    raise
                reasons[sample] = broken.found or broken.what
        if not reasons:
            raise failure
        self.bad.update(reasons)
        if len(self.bad) > self._most:
            raise too_many_unreadable_failure(self.bad.values(), self._most)
        if len(self.bad) == self._count:
            raise too_many_unreadable_failure(self.bad.values(), self._count - 1)


def read_to_augment(
    reader: SkipUnreadable, augmenter: Augmenter, samples: SampleIndices, keys: SampleIndices, epoch: int
) -> tuple[Tensor | None, SampleIndices, dict[int, str]]:
    """Read training samples as `SkipUnreadable.read`; of whole images the boxes that `augmenter` draws for `keys`."""
    draws, read_cropped = augmenter.crop_draws(keys, epoch), augmenter.read_cropped
    if draws is None or read_cropped is None:
        return reader.read(samples)
    return reader.read(samples, lambda taken: read_cropped(taken, draws))


class UnreadableLog:
    """Logs each broken image of both splits once, and counts them.

    unreadable: path and reason, by split and sample.
    """

    def __init__(self, most: int, say: Callable[[str], None]) -> None:
        self._most, self._say = most, say
        self.unreadable: dict[tuple[str, int], str] = {}

    def __iter__(self) -> Iterator[str]:
        """Path and reason of each."""
        return iter(self.unreadable.values())

    @property
    def summary(self) -> str | None:
        """How many images were skipped, for the end of a run; None if all could be read."""
        images = "1 broken image" if len(self.unreadable) == 1 else f"{len(self.unreadable):,} broken images"
        return f"{images} skipped (data.max_bad_images: {self._most})" if self.unreadable else None

    def warn(self, line: str) -> None:
        """Log a line about images that were read after all."""
        self._say(line)

    def add(self, split: str, bad: Mapping[int, str]) -> None:
        """Count the broken images of a split, by sample.

        Raises:
            Failure: DATA if there are more than data.max_bad_images.
        """
        self.merge({(split, sample): text for sample, text in bad.items()})

    def merge(self, unreadable: Mapping[tuple[str, int], str]) -> None:
        """Add the broken images that other ranks have met. Raises as `add`."""
        for key in sorted(unreadable.keys() - self.unreadable.keys()):
            self.unreadable[key] = unreadable[key]
            if len(self.unreadable) <= self._most:
                self._say(f"skipped a broken image ({len(self.unreadable)} of at most {self._most}): {unreadable[key]}")
        if len(self.unreadable) > self._most:
            raise too_many_unreadable_failure(self.unreadable.values(), self._most)


def too_many_unreadable_failure(texts: Iterable[str], most: int) -> Failure:
    """The Failure for more broken images than data.max_bad_images allows, or for only broken ones.

    texts: path and reason of each.
    """
    listed = sorted(texts)
    return Failure(
        f"more than {most} image {'file' if most == 1 else 'files'} cannot be read (data.max_bad_images)",
        found=list_some(listed, MAX_LISTED_IMAGES, separator="; "),
        fix=f"replace or delete these files (`{shell_command('train data check', same_config=True)}` finds all), or "
        "raise data.max_bad_images",
        code=ExitCode.DATA,
    )


PREFETCH_FACTOR: Final = 2  # batches that each worker process has ready
Request = TypeVar("Request")  # returned with the pixels of its samples: a micro batch, a number
SHARED_MEMORY_FOLDER: Final = "/dev/shm"  # where Linux keeps shared memory; 64 MiB in a container by default


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The training or the validation samples.

    collate: makes their batches. most: how many images may be broken. replace: whether another image replaces a broken
    one; else it is left out.
    """

    name: str
    source: SampleSource
    collate: Collate
    ledger: UnreadableLog
    most: int
    replace: bool

    def tolerant(self) -> SkipUnreadable:
        """A reader that keeps its own list of broken images."""
        return SkipUnreadable(self.source.read, len(self.source.labels), most=self.most, replace=self.replace)


class _CurrentStreamSampler:
    """The requests of the current stream: persistent workers read one stream after the other."""

    requests: Iterable[tuple[Any, SampleIndices]] = ()

    def __iter__(self) -> Iterator[tuple[Any, SampleIndices]]:
        return iter(self.requests)


@dataclass(frozen=True, slots=True)
class WorkerLoader:
    """Images decoded by `workers` processes (0: by this one), a few batches ahead.

    stay: whether the workers are persistent and wait for the next stream, as between evaluations. augmenter: what the
    workers do to training samples; their requests are `MicroBatch`es. decoder: decodes on the GPU what workers read.
    """

    split: Split
    workers: int
    device: torch.device
    stay: bool = False
    augmenter: Augmenter | None = None
    decoder: GpuDecoder | None = None
    _kept: list[tuple[DataLoader[Any], _CurrentStreamSampler]] = field(default_factory=list)

    def __str__(self) -> str:
        workers = f"{self.workers} worker" + "s" * (self.workers != 1)
        return workers if self.decoder is None else f"{workers}, JPEGs are decoded on the GPU"

    def read(self, requests: Iterable[tuple[Request, SampleIndices]]) -> Iterator[tuple[Request, Batch]]:
        """Read all requests in one stream: the workers are started once, not once per epoch.

        A request travels through the worker with its samples, so the order in which batches return does not matter.
        Random numbers that a user's source draws in the workers are seeded by the samples of the first request. These
        differ by the seed of the run, the rank, and the step at which a resumed run begins.
        """
        batches = self._receive(requests)
        if self.decoder is not None:
            batches = self._decode_on_gpu(self.decoder, batches)
        for request, samples, batch in batches:
            entries = {name: entry.to(self.device, non_blocking=True) for name, entry in batch.items()}
            yield request, {**entries, "sample": torch.from_numpy(samples)}

    def _receive(
        self, requests: Iterable[tuple[Request, SampleIndices]]
    ) -> Iterator[tuple[Request, SampleIndices, Batch]]:
        """What the workers have read of each request; nothing of one without a readable sample."""
        requests = iter(requests)
        if (first := next(requests, None)) is None:
            return
        requests, seed = itertools.chain([first], requests), rng.derive_seed(rng.WORKERS, *first[1].tolist())
        with self.split.source.reading(requests) as requests:
            try:
                # Nothing else holds this iterator: a failure ends its workers.
                for message in _iterate_batches(self._dataloader(requests, seed)):
                    if isinstance(message, dict):
                        raise Failure(**message)
                    request, batch, samples, bad = message
                    request = self.split.source.release(request)
                    self.split.ledger.add(self.split.name, bad)
                    if batch is not None:
                        yield request, samples, batch
            except Exception:
                self._kept.clear()  # drop the loader too, which would keep the workers
                raise

    def _decode_on_gpu(
        self, decoder: GpuDecoder, received: Iterator[tuple[Request, SampleIndices, Batch]]
    ) -> Iterator[tuple[Request, SampleIndices, Batch]]:
        assert self.augmenter is not None
        on_cpu = _SplitDataset(self.split, replace(self.augmenter, stored=()))  # as of what the GPU decodes
        for request, samples, batch, bad in decoder.decode_ahead(received, on_cpu.read):
            self.split.ledger.add(self.split.name, bad)
            if batch is not None:
                yield request, samples, batch

    def _dataloader(self, requests: Iterable[tuple[Any, SampleIndices]], seed: int) -> DataLoader[Any]:
        """The DataLoader for these requests: the one whose workers persist, or a new one."""
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
            # `train` has compared the workers with the cores before the start, and named a fix.
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
            get_temp_dir()  # created here, so that this process removes it, with the files of killed workers
        augmenter = self.augmenter
        if self.decoder is not None and augmenter is not None:
            augmenter = for_reading(augmenter, self.split.source)
        return DataLoader(
            _SplitDataset(self.split, augmenter),
            batch_size=None,
            collate_fn=lambda message: message,  # torch would make tensors of arrays, each with a file to send
            sampler=sampler,
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            prefetch_factor=PREFETCH_FACTOR if self.workers else None,
            persistent_workers=self.stay and self.workers > 0,
            multiprocessing_context=START_METHOD if self.workers else None,
            worker_init_fn=_init_worker,
            generator=torch.Generator(),  # else each stream would draw from the generator that dropout uses
        )


def in_blocks(items: Iterable[Item], samples: Callable[[Item], SampleIndices]) -> Iterator[list[Item]]:
    """Blocks of items that have SAMPLES_PER_BLOCK samples together, or one item that has more."""
    block, count = list[Item](), 0
    for item in items:
        block.append(item)
        count += len(samples(item))
        if count >= SAMPLES_PER_BLOCK:
            yield block
            block, count = [], 0
    if block:
        yield block


class _SplitDataset(Dataset[Any]):
    """Reads one request in a worker process: DataLoader calls it with each (request, samples) that the sampler yields.

    It returns a Failure as its arguments, because torch can only rebuild exceptions that take a single text.
    """

    def __init__(self, split: Split, augmenter: Augmenter | None) -> None:
        self._reader, self._augmenter, self._split = split.tolerant(), augmenter, split

    def __getitem__(
        self, item: tuple[Any, SampleIndices]
    ) -> tuple[Any, Batch | None, SampleIndices, dict[int, str]] | dict[str, Any]:
        try:
            request, samples = item
            batch, samples, bad = self.read(self._split.source.unpack(request), samples)
            if batch is not None and get_worker_info():
                for entry in batch.values():
                    for tensor in entry.tensors if isinstance(entry, EncodedBatch) else (entry,):
                        move_to_shared_memory(tensor)
            return request, batch, samples, bad
        except Failure as failure:
            return failure.arguments()

    def read(self, request: Any, samples: SampleIndices) -> tuple[Batch | None, SampleIndices, dict[int, str]]:
        """(batch, samples, broken ones) as `SkipUnreadable.read`.

        They are augmented as the requested samples are: not as those that replace them.
        """
        if self._augmenter is None:
            pixels, taken, bad = self._reader.read(samples)
        else:
            keys = request.augmentation_keys
            pixels, taken, bad = read_to_augment(self._reader, self._augmenter, samples, keys, request.epoch)
            if pixels is not None:
                pixels = self._augmenter.augment_stored(pixels, keys, request.epoch)
        if pixels is None:
            return None, taken, bad
        return self._split.collate(pixels, self._split.source.labels[taken]), taken, bad


def move_to_shared_memory(pixels: Tensor) -> None:
    """Move the pixels into shared memory before torch does, so that an error can be reported.

    In torch's own thread the batch would be lost, and the parent would wait for it forever.

    Raises:
        Failure: RESOURCE if /dev/shm is full, or no more files may be open.
    """
    try:
        pixels.share_memory_()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        shm = os.statvfs(SHARED_MEMORY_FOLDER)
        raise resource_limit_failure(error) or Failure(
            "a data worker cannot put its batch into shared memory",
            found=f"{SHARED_MEMORY_FOLDER} of {shm.f_blocks * shm.f_frsize >> 20} MiB; one batch takes "
            f"{pixels.nbytes / 2**20:.1f} MiB; " + str(error).splitlines()[0],
            fix=f"{engines.fix('shm')}; or lower data.workers or train.micro_batch_size",
            code=ExitCode.RESOURCE,
        ) from error


def _iterate_batches(ready: DataLoader[Any]) -> Iterator[Any]:
    """The batches of the workers.

    A worker that is killed while its batch is received breaks the connection: torch does not report that it died.
    """
    try:
        yield from _start_workers(ready)
    except (ConnectionError, EOFError, FileNotFoundError) as error:
        if not ready.num_workers or "in DataLoader worker process" in str(error):  # raised by the source
            raise
        raise Failure(
            "a data worker process died",
            found=f"{type(error).__name__} while its batch was received",
            fix=DEAD_WORKER_FIX,
            code=ExitCode.RESOURCE,
        ) from error


def _start_workers(ready: DataLoader[Any]) -> Iterator[Any]:
    gc.freeze()  # or a worker's garbage collection would copy what it shares with this process
    try:
        stream = iter(ready)
    finally:
        gc.unfreeze()
    atexit.unregister(_kill_workers)
    atexit.register(_kill_workers)  # registered after torch's own handler, so that it runs first
    return stream


def _kill_workers() -> None:
    """Kill the workers at exit, if a stream was not read to its end.

    Python would send them SIGTERM, which they ignore, and wait for them forever.
    """
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # torch's handler raises at the first worker that ends, and the others would remain
    for worker in multiprocessing.active_children():
        worker.kill()


LIMIT_PAUSE_S, MAX_LIMIT_PAUSES = 0.1, 100  # for which a worker waits until it may open a file
_limit_errors = itertools.count()


def _handle_sender_error(error_type: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Silence the lost connection to a rank that ended while it received a batch: the rank says why it ended.

    Python's thread that sends batches calls `sys.excepthook` for it, and for each try without a free file: others
    become free as batches are received. Where none does, the worker ends, since its rank would wait for ever.
    """
    if resource_limit_failure(error) is not None:
        if next(_limit_errors) >= MAX_LIMIT_PAUSES:
            os._exit(int(ExitCode.RESOURCE))
        time.sleep(LIMIT_PAUSE_S)
    elif not isinstance(error, (EOFError, ConnectionError)):
        sys.__excepthook__(error_type, error, trace)


def _send_failure(queue: Any, error: Exception, message: Any) -> None:
    """In place of a batch that could not be sent, send a Failure: Python would print the error, and drop the batch.

    queue: of the batches. message: torch's, which begins with the number of the request.
    """
    failure = resource_limit_failure(error) or Failure(
        "a data worker cannot send its batch",
        found=f"{type(error).__name__}: {error}",
        fix=DEAD_WORKER_FIX,
        code=ExitCode.RESOURCE,
    )
    queue.put((message[0], failure.arguments()))


def _init_worker(worker: int) -> None:
    """Start a data worker, which ends with its rank and ignores signals.

    A scheduler signals every process of a job step. A worker that ends then would prevent the rank's last save.
    """
    die_with_parent(signal.SIGKILL, os.getppid())  # torch's workers look for their parent only every 5 s
    torch.set_num_threads(1)
    sys.excepthook = _handle_sender_error
    Queue._on_queue_feeder_error = _send_failure  # type: ignore[attr-defined]  # as concurrent.futures does
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
