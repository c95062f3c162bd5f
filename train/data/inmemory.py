"""From a source to all its images in memory: the device's where they fit, else the host's, copied one batch ahead."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entrypoint import Failure, Pulse
from train.data.onehost import ALONE, Host
from train.data.pools import Read, Side, on_device
from train.data.sets import Samples

CHUNK: Final = 128  # images decoded by one thread at a time, which then gives a sign of life
WIDEST: Final = 4  # bytes of one number, at most: what is never written of an area takes no memory
SHARE: Final = 0.25  # of a GPU's free memory, for the images of one side: what is computed of them needs the rest


@dataclass(frozen=True, slots=True)
class InMemory:
    """Every image, decoded, on the device. `whole` says which rows hold one; None: all."""

    pixels: Tensor
    labels: Tensor
    whole: npt.NDArray[np.bool_] | None = None

    def __str__(self) -> str:
        return "memory" if self.pixels.device.type == "cpu" else "memory, on the GPU"

    def take(self, wanted: Iterable[Samples]) -> Iterator[Read]:
        """Give all images each time, and which rows are meant."""
        for there in _whole(wanted, self.whole):
            rows = on_device(there, self.pixels.device)
            yield self.pixels, rows, self.labels.index_select(0, rows)


@dataclass(frozen=True, slots=True)
class Staged:
    """Every image, decoded, in the host's memory. A batch is copied while the one before it is computed."""

    pixels: Tensor
    labels: Tensor
    whole: npt.NDArray[np.bool_] | None
    device: torch.device

    def __str__(self) -> str:
        return "memory, of the host: copied one batch ahead"

    def take(self, wanted: Iterable[Samples]) -> Iterator[Read]:
        """Give the images that are meant, and all their rows."""
        lane = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None  # type: ignore[no-untyped-call]
        ahead: _Sent | None = None
        for there in _whole(wanted, self.whole):
            ready, ahead = ahead, self._sent(there, lane)
            if ready is not None:
                yield ready.read()
        if ahead is not None:
            yield ahead.read()

    def _sent(self, samples: Samples, lane: torch.cuda.Stream | None) -> _Sent:
        """Gathered in pinned memory, and on its way beside what the device computes."""
        rows, pinned = torch.from_numpy(samples), lane is not None
        images = torch.empty((len(rows), *self.pixels.shape[1:]), dtype=self.pixels.dtype, pin_memory=pinned)
        torch.index_select(self.pixels, 0, rows, out=images)
        labels = self.labels[rows]
        with nullcontext() if lane is None else torch.cuda.stream(lane):
            return _Sent(
                images=images.to(self.device, non_blocking=True),
                labels=(labels.pin_memory() if pinned else labels).to(self.device, non_blocking=True),
                copied=None if lane is None else lane.record_event(),
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sent:
    """A batch on its way to the device. copied: what to wait for before it is used."""

    images: Tensor
    labels: Tensor
    copied: torch.cuda.Event | None

    def read(self) -> Read:
        """The device waits, not the host; and keeps the memory until it has used it."""
        if self.copied is not None:
            stream = torch.cuda.current_stream(self.images.device)
            stream.wait_event(self.copied)
            self.images.record_stream(stream)
            self.labels.record_stream(stream)
        return self.images, torch.arange(len(self.labels), device=self.images.device), self.labels


def _whole(wanted: Iterable[Samples], whole: npt.NDArray[np.bool_] | None) -> Iterable[Samples]:
    """Of each array of samples those that can be read, where there are any."""
    if whole is None:
        return wanted
    there = (samples[whole[samples]] for samples in wanted)
    return (samples for samples in there if len(samples))


def in_memory(
    side: Side,
    stored: tuple[int, ...],
    device: torch.device,
    threads: int,
    pulse: Pulse | None = None,
    host: Host = ALONE,
) -> InMemory | Staged:
    """Decode all images, several at a time: Pillow and numpy let other threads run meanwhile. The ranks of one machine
    share the work, and the memory of what they read.

    Args:
        stored: the shape of one sample as it is read.

    Raises:
        Failure: DATA or NO_INPUT, naming the images.
    """
    count = len(side.source.labels)
    area = host.area(WIDEST * count * math.prod(stored))
    part = _Part(pixels=_Pixels((count, *stored), area.memory))
    mine = _chunks(count)[area.ranks.index(host.rank) :: len(area.ranks)]
    if host.world_size == 1:
        part.read(side, mine, threads, pulse)
        found = [part.found]
    else:
        with suppress(Failure):
            part.read(side, mine, threads, pulse)
        everywhere = host.gathered(part.found)
        _raise_first(everywhere)
        found = [everywhere[rank] for rank in area.ranks]
    labels, whole = _joined(side, found)
    return _placed(part.pixels.of(found), labels, whole, device)


def _chunks(count: int) -> list[Samples]:
    return np.array_split(np.arange(count), max(1, -(-count // CHUNK)))


@dataclass(slots=True, kw_only=True)
class _Found:
    """What one rank has read, without the pixels.

    moved: the samples that stand in other ones' rows. missing: rows that hold none. bad: broken images. failure: and
    the first sample of the chunk that it came from.
    """

    kind: torch.dtype | None = None
    moved: dict[int, int] = field(default_factory=dict)
    missing: list[int] = field(default_factory=list)
    bad: dict[int, str] = field(default_factory=dict)
    failure: tuple[int, dict[str, Any]] | None = None


@dataclass(slots=True)
class _Pixels:
    """[count, *stored] of the type that is read first, in this memory, or in memory of its own."""

    shape: tuple[int, ...]
    memory: Tensor | None
    filled: Tensor | None = None

    def put(self, rows: Samples, read: Tensor) -> None:
        if self.filled is None:
            self.filled = self._shaped(read.dtype)
        self.filled[rows] = read

    def of(self, found: Sequence[_Found]) -> Tensor:
        """All of them; without a row where nothing could be read."""
        kind = next((part.kind for part in found if part.kind is not None), None)
        if kind is None:
            return torch.zeros((0, *self.shape[1:]), dtype=torch.uint8)
        return self._shaped(kind) if self.filled is None else self.filled

    def _shaped(self, kind: torch.dtype) -> Tensor:
        if self.memory is None:
            return torch.zeros(self.shape, dtype=kind)
        return self.memory[: math.prod(self.shape) * kind.itemsize].view(kind).view(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One rank's share of the work."""

    pixels: _Pixels
    found: _Found = field(default_factory=_Found)

    def read(self, side: Side, chunks: Sequence[Samples], threads: int, pulse: Pulse | None) -> None:
        """Fill the rows of these chunks; a failure is noted too."""
        with ThreadPoolExecutor(threads) as pool:
            results = pool.map(lambda chunk: side.tolerant().read(chunk), chunks)
            try:
                for chunk in (pulse or Pulse()).each("data", chunks):
                    self._take(side, chunk, results)
            finally:
                results.close()  # type: ignore[attr-defined]  # a generator: what was not begun is not read any more

    def _take(
        self, side: Side, chunk: Samples, results: Iterator[tuple[Tensor | None, Samples, dict[int, str]]]
    ) -> None:
        try:
            read, taken, bad = next(results)
            side.ledger.add(side.name, bad)
        except Failure as failure:
            self.found.failure = (int(chunk[0]), failure.arguments())
            raise
        self.found.bad |= bad
        rows = chunk if side.replace else taken
        self.found.missing += np.setdiff1d(chunk, rows).tolist()
        other = rows != taken
        self.found.moved |= dict(zip(rows[other].tolist(), taken[other].tolist(), strict=True))
        if read is not None:
            self.found.kind = read.dtype
            self.pixels.put(rows, read)


def _raise_first(found: Sequence[_Found]) -> None:
    """The failure that one rank alone would have met first."""
    failures = [part.failure for part in found if part.failure is not None]
    if failures:
        raise Failure(**min(failures, key=lambda failure: failure[0])[1])


def _joined(side: Side, found: Sequence[_Found]) -> tuple[Tensor, npt.NDArray[np.bool_] | None]:
    """Labels, and which rows hold an image."""
    labels, whole = side.source.labels.clone(), np.ones(len(side.source.labels), bool)
    for part in found:
        side.ledger.add(side.name, part.bad)
        whole[part.missing] = False
        labels[list(part.moved)] = side.source.labels[list(part.moved.values())]
    return labels, None if whole.all() else whole


def _placed(
    pixels: Tensor, labels: Tensor, whole: npt.NDArray[np.bool_] | None, device: torch.device
) -> InMemory | Staged:
    if device.type == "cuda" and pixels.nbytes > SHARE * torch.cuda.mem_get_info(device)[0]:
        return Staged(pixels, labels, whole, device)
    return InMemory(pixels.to(device), labels.to(device), whole)
