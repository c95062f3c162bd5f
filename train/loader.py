"""From samples to batches on the device: out of memory where all images fit, else read by worker processes."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from entrypoint import Failure
from train import augment
from train.config import Data
from train.data import Samples, Sets, Source
from train.sampling import Piece
from train.shape import Shape

LARGEST_IN_MEMORY: Final = 2 * 2**30  # bytes of pixels, both sides together
T = TypeVar("T")
CHUNK: Final = 1024  # images decoded by one thread at a time
PREFETCH: Final = 2  # batches that each worker process has ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """float32 images [n, *shape.input] and int64 labels [n], on the device."""

    images: Tensor
    labels: Tensor


class Pool(Protocol):
    """Where the pixels of one side of the data come from."""

    def take(self, wanted: Iterable[Samples]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """For each array of samples (pixels [N, *stored], rows [n] of them, labels [n]) on the device."""


@dataclass(frozen=True, slots=True)
class InMemory:
    """Every image, decoded, on the device."""

    pixels: Tensor
    labels: Tensor

    def take(self, wanted: Iterable[Samples]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Give all images each time, and which rows are meant."""
        for samples in wanted:
            rows = torch.from_numpy(samples).to(self.pixels.device, non_blocking=True)
            yield self.pixels, rows, self.labels[rows]


@dataclass(frozen=True, slots=True)
class ByWorkers:
    """Images decoded by `workers` processes (0: by this one), a few batches ahead."""

    source: Source
    workers: int
    device: torch.device

    def take(self, wanted: Iterable[Samples]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """One stream for all that is wanted: the workers are started once, not once per epoch."""
        queued: list[Samples] = []
        ready = DataLoader(
            _Reading(self.source),
            batch_size=None,
            sampler=_remembered(wanted, queued),
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
            prefetch_factor=PREFETCH if self.workers else None,
            worker_init_fn=_leave_signals_to_the_parent,
        )
        for pixels in ready:
            if isinstance(pixels, dict):
                raise Failure(**pixels)
            labels = self.source.labels[torch.from_numpy(queued.pop(0))]
            rows = torch.arange(len(labels), device=self.device)
            yield pixels.to(self.device, non_blocking=True), rows, labels.to(self.device, non_blocking=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """Both sides of the data, ready to be drawn from."""

    training: Pool
    held_out: Pool
    shape: Shape
    data: Data
    seed: int
    kind: str

    def train(self, pieces: Sequence[Piece] | Iterator[Piece]) -> Iterator[tuple[Piece, Batch]]:
        """Each micro batch with its images, augmented."""
        kept: list[Piece] = []
        wanted = (piece.samples for piece in _remembered(pieces, kept))
        for pixels, rows, labels in self.training.take(wanted):
            piece = kept.pop(0)
            yield piece, Batch(images=augment.apply(pixels, rows, self._shifts(piece, rows)), labels=labels)

    def evaluate(self, blocks: Sequence[Samples]) -> Iterator[Batch]:
        """Each block of held-out samples, as they are."""
        for pixels, rows, labels in self.held_out.take(blocks):
            yield Batch(images=augment.normalized(pixels[rows]), labels=labels)

    def _shifts(self, piece: Piece, rows: Tensor) -> Tensor:
        shape, seed = self.shape, self.seed
        moves = augment.moves(self.data.augment, piece.samples, shape=shape, seed=seed, epoch=piece.epoch)
        packed = torch.from_numpy(np.stack([moves.down, moves.right, moves.mirror]))
        return packed.to(rows.device, non_blocking=True)


def open_loader(sets: Sets, data: Data, *, seed: int, device: torch.device, cores: int) -> Loader:
    """Read everything now (memory), or get ready to read as it is needed (workers).

    Args:
        cores: how many this rank may use.

    Raises:
        Failure: DATA or NO_INPUT, naming the image.
    """
    fits = sets.numbers <= LARGEST_IN_MEMORY
    kind = data.loader if data.loader != "auto" else "memory" if fits else "workers"
    workers = min(8, max(1, cores - 1)) if data.workers == "auto" else data.workers
    pools: list[Pool] = [
        _in_memory(side, device, cores) if kind == "memory" else ByWorkers(side, workers, device)
        for side in (sets.training, sets.held_out)
    ]
    told = kind if kind == "memory" else f"{workers} worker" + "s" * (workers != 1)
    return Loader(training=pools[0], held_out=pools[1], shape=sets.shape, data=data, seed=seed, kind=told)


def _in_memory(source: Source, device: torch.device, threads: int) -> InMemory:
    """Decode all images, several at a time: Pillow and numpy let other threads run meanwhile."""
    chunks = np.array_split(np.arange(len(source.labels)), max(1, -(-len(source.labels) // CHUNK)))
    with ThreadPoolExecutor(threads) as pool:
        pixels = torch.cat(list(pool.map(source.read, chunks)))
    return InMemory(pixels.to(device), source.labels.to(device))


class _Reading(Dataset[Any]):
    """What a worker process does for one array of samples. A Failure comes back as its facts: torch's way of
    handing exceptions on can only make those that take one text."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getitem__(self, samples: Samples) -> Tensor | dict[str, Any]:
        try:
            return self._source.read(samples)
        except Failure as failure:
            facts = {name: getattr(failure, name) for name in ("what", "fix", "found", "expected", "kept")}
            return facts | {"code": int(failure.code)}


def _leave_signals_to_the_parent(worker: int) -> None:
    """A scheduler signals every process of a step; a worker that dies of it takes the last save with it."""
    torch.set_num_threads(1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)


def _remembered(items: Iterable[T], kept: list[T]) -> Iterator[T]:
    for item in items:
        kept.append(item)
        yield item
