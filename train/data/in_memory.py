"""Keeps all images of a split in GPU memory if they fit, otherwise in host memory.

The ranks of one host divide the decoding and share one copy in host memory, from which each batch
is copied to the device one batch ahead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entrypoint import Failure, Heartbeat
from train.data.batch import Batch, to_device
from train.data.splits import SampleIndices
from train.data.workers import Request, Split, in_blocks
from train.distributed.shared_memory import SINGLE_RANK, HostRanks

IMAGES_PER_CHUNK: Final = 128  # decoded by one thread between two heartbeats
MAX_ITEMSIZE_BYTES: Final = 4  # largest dtype; pages of an area that are never written take no memory
# Of a GPU's free memory, for the images of one split: the training needs the rest.
FREE_GPU_MEMORY_FRACTION: Final = 0.25


@dataclass(frozen=True, slots=True)
class DeviceDataset:
    """All samples, decoded, on the device. readable: which rows hold an image, bool [N]; None: all."""

    samples: Batch  # of the whole split
    readable: npt.NDArray[np.bool_] | None
    device: torch.device

    def __str__(self) -> str:
        return "memory" if self.device.type == "cpu" else "memory, on the GPU"

    def read(self, requests: Iterable[tuple[Request, SampleIndices]]) -> Iterator[tuple[Request, Batch]]:
        """Yield all images for each request, and the rows of its samples, copied for several requests at once."""
        others = dict(self.samples)
        pixels = others.pop("image")
        for block in in_blocks(_readable_requests(requests, self.readable), itemgetter(1)):
            copied = to_device(np.concatenate([samples for _, samples in block]), self.device)
            parts = torch.split(copied, [len(samples) for _, samples in block])
            for (request, samples), rows in zip(block, parts, strict=True):
                selected = {name: entry.index_select(0, rows) for name, entry in others.items()}
                yield request, {"image": pixels, "row": rows, **selected, "sample": torch.from_numpy(samples)}


@dataclass(frozen=True, slots=True)
class HostDataset:
    """All samples, decoded, in host memory. A batch is copied while the GPU computes the one before it."""

    samples: Batch  # of the whole split
    readable: npt.NDArray[np.bool_] | None
    device: torch.device

    def __str__(self) -> str:
        return "memory, of the host: copied one batch ahead"

    def read(self, requests: Iterable[tuple[Request, SampleIndices]]) -> Iterator[tuple[Request, Batch]]:
        """Yield the batch of each request."""
        lane = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        pending: tuple[Request, Batch, torch.cuda.Event | None] | None = None
        for request, samples in _readable_requests(requests, self.readable):
            ready, pending = pending, (request, *self._start_copy(samples, lane))
            if ready is not None:
                yield _wait_for_copy(*ready)
        if pending is not None:
            yield _wait_for_copy(*pending)

    def _start_copy(
        self, samples: SampleIndices, lane: torch.cuda.Stream | None
    ) -> tuple[Batch, torch.cuda.Event | None]:
        """Gather the samples in pinned memory, and copy them while the device computes. The event ends the copy."""
        rows, selected = torch.from_numpy(samples), dict[str, Tensor]()
        for name, entry in self.samples.items():
            memory = torch.empty((len(rows), *entry.shape[1:]), dtype=entry.dtype, pin_memory=lane is not None)
            selected[name] = torch.index_select(entry, 0, rows, out=memory)
        with nullcontext() if lane is None else torch.cuda.stream(lane):
            copies = {name: to_device(entry, self.device) for name, entry in selected.items()}
            return {**copies, "sample": rows}, None if lane is None else lane.record_event()


def _wait_for_copy(request: Request, batch: Batch, copied: torch.cuda.Event | None) -> tuple[Request, Batch]:
    """Make the device wait, not the host; the device keeps the memory until it has used it."""
    if copied is not None:
        for tensor in batch.values():
            if tensor.device.type == "cuda":
                stream = torch.cuda.current_stream(tensor.device)
                stream.wait_event(copied)
                tensor.record_stream(stream)
    return request, batch


def _readable_requests(
    requests: Iterable[tuple[Request, SampleIndices]], readable: npt.NDArray[np.bool_] | None
) -> Iterable[tuple[Request, SampleIndices]]:
    """Each request with its readable samples; requests without any are left out."""
    if readable is None:
        return requests
    left = ((request, samples[readable[samples]]) for request, samples in requests)
    return ((request, samples) for request, samples in left if len(samples))


def load_in_memory(
    split: Split,
    stored: tuple[int, ...],
    device: torch.device,
    threads: int,
    pulse: Heartbeat | None = None,
    host: HostRanks = SINGLE_RANK,
) -> DeviceDataset | HostDataset:
    """Decode all images in several threads: Pillow and numpy release the GIL.

    The ranks of one host share the decoding and the memory of the images.

    Args:
        stored: the shape of one sample as it is read.

    Raises:
        Failure: DATA or NO_INPUT, naming the images.
    """
    count = len(split.source.labels)
    area = host.area(MAX_ITEMSIZE_BYTES * count * math.prod(stored))
    share = _RankShare(pixels=_PixelBuffer((count, *stored), area.memory))
    chunks = _sample_chunks(count)[area.ranks.index(host.rank) :: len(area.ranks)]
    if host.world_size == 1:
        share.read(split, chunks, threads, pulse)
        reports = [share.report]
    else:
        with suppress(Failure):
            share.read(split, chunks, threads, pulse)
        all_reports = host.all_gather(share.report)
        _raise_first_failure(all_reports)
        reports = [all_reports[rank] for rank in area.ranks]
    labels, readable = _merge_reports(split, reports)
    return _place_dataset(split.collate(share.pixels.result(reports), labels), readable, device)


def _sample_chunks(count: int) -> list[SampleIndices]:
    return np.array_split(np.arange(count), max(1, -(-count // IMAGES_PER_CHUNK)))


@dataclass(slots=True, kw_only=True)
class _ReadReport:
    """What one rank has read, without the pixels.

    moved: by row, the sample that replaces an unreadable one. missing: rows without an image. bad: broken images.
    failure: the arguments of a Failure, after the first sample of the chunk that raised it.
    """

    dtype: torch.dtype | None = None
    moved: dict[int, int] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    failure: tuple[int, dict[str, Any]] | None = None


@dataclass(slots=True)
class _PixelBuffer:
    """[count, *stored] of the dtype that is read first, in `memory`, or if that is None in its own memory."""

    shape: tuple[int, ...]
    memory: Tensor | None
    filled: Tensor | None = None

    def put(self, rows: SampleIndices, read: Tensor) -> None:
        if self.filled is None:
            self.filled = self._shaped(read.dtype)
        self.filled[rows] = read

    def result(self, reports: Sequence[_ReadReport]) -> Tensor:
        """The pixels of all ranks; no rows if nothing could be read."""
        dtype = next((report.dtype for report in reports if report.dtype is not None), None)
        if dtype is None:
            return torch.zeros((0, *self.shape[1:]), dtype=torch.uint8)
        return self._shaped(dtype) if self.filled is None else self.filled

    def _shaped(self, dtype: torch.dtype) -> Tensor:
        if self.memory is None:
            return torch.zeros(self.shape, dtype=dtype)
        return self.memory[: math.prod(self.shape) * dtype.itemsize].view(dtype).view(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankShare:
    """One rank's share of the work."""

    pixels: _PixelBuffer
    report: _ReadReport = field(default_factory=_ReadReport)

    def read(self, split: Split, chunks: Sequence[SampleIndices], threads: int, pulse: Heartbeat | None) -> None:
        """Fill the rows of these chunks; a failure is also recorded in the report."""
        with ThreadPoolExecutor(threads) as pool:
            results = pool.map(lambda chunk: split.tolerant().read(chunk), chunks)
            try:
                for chunk in (pulse or Heartbeat()).each("data", chunks):
                    self._store(split, chunk, results)
            finally:
                results.close()  # type: ignore[attr-defined]  # a generator: chunks that have not begun are cancelled

    def _store(
        self, split: Split, chunk: SampleIndices, results: Iterator[tuple[Tensor | None, SampleIndices, dict[int, str]]]
    ) -> None:
        try:
            read, taken, bad = next(results)
            split.ledger.add(split.name, bad)
        except Failure as failure:
            self.report.failure = (int(chunk[0]), failure.arguments())
            raise
        self.report.bad |= bad
        rows = chunk if split.replace else taken
        self.report.missing += np.setdiff1d(chunk, rows).tolist()
        other = rows != taken
        self.report.moved |= dict(zip(rows[other].tolist(), taken[other].tolist(), strict=True))
        if read is not None:
            self.report.dtype = read.dtype
            self.pixels.put(rows, read)


def _raise_first_failure(reports: Sequence[_ReadReport]) -> None:
    """Raise the failure that a single rank would have met first."""
    failures = [report.failure for report in reports if report.failure is not None]
    if failures:
        raise Failure(**min(failures, key=lambda failure: failure[0])[1])


def _merge_reports(split: Split, reports: Sequence[_ReadReport]) -> tuple[Tensor, npt.NDArray[np.bool_] | None]:
    """Labels, and which rows hold an image."""
    labels, readable = split.source.labels.clone(), np.ones(len(split.source.labels), bool)
    for report in reports:
        split.ledger.add(split.name, report.bad)
        readable[report.missing] = False
        labels[list(report.moved)] = split.source.labels[list(report.moved.values())]
    return labels, None if readable.all() else readable


def _place_dataset(
    samples: Batch, readable: npt.NDArray[np.bool_] | None, device: torch.device
) -> DeviceDataset | HostDataset:
    num_bytes = sum(entry.nbytes for entry in samples.values())
    if device.type == "cuda" and num_bytes > FREE_GPU_MEMORY_FRACTION * torch.cuda.mem_get_info(device)[0]:
        return HostDataset(samples, readable, device)
    return DeviceDataset({name: entry.to(device) for name, entry in samples.items()}, readable, device)
