"""From samples to batches on the device: augmented for training, as they are for evaluation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import torch
from torch import Tensor

from entrypoint import ExitCode, Failure, Pulse
from train.data import augment, cached
from train.data.broken import Ledger
from train.data.inmemory import InMemory, Staged, in_memory
from train.data.onehost import ALONE, Host
from train.data.pools import ByWorkers, Read, Side, on_device
from train.data.sampling import Piece
from train.data.sets import Samples, Sets, Source
from train.data.shape import Shape
from train.settings.config import Data

LARGEST_IN_MEMORY: Final = 2 * 2**30  # bytes of pixels, both sides together


@dataclass(slots=True, kw_only=True)
class Batch:
    """float32 images [n, *shape.input] and int64 labels [n], on the device. Not frozen: see `Piece`."""

    images: Tensor
    labels: Tensor


class Pool(Protocol):
    """Where the pixels of one side of the data come from."""

    def take(self, wanted: Iterable[Samples]) -> Iterator[Read]:
        """For each array of samples (pixels [N, *stored], rows [n] of them, labels [n]) on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """Both sides of the data, ready to be drawn from.

    workers: processes that read. broken: the files that this rank has skipped so far. paths: of the training samples,
    where they are files. notes: what the user should know of data.cache.
    """

    training: Pool
    held_out: Pool
    shape: Shape
    mirror: bool
    data: Data
    seed: int
    kind: str
    broken: Ledger
    paths: Sequence[str] | None = None
    workers: int = 0
    notes: tuple[str, ...] = ()

    def train(self, pieces: Sequence[Piece] | Iterator[Piece]) -> Iterator[tuple[Piece, Batch]]:
        """Each micro batch with its images, augmented."""
        kept: list[Piece] = []
        still = augment.is_still(self.data.augment)
        for pixels, rows, labels in self.training.take(_wanted(pieces, kept)):
            piece = kept.pop(0)
            images = self._plain(pixels, rows) if still else self._augmented(piece, pixels, rows)
            yield piece, Batch(images=images, labels=labels)

    def evaluate(self, blocks: Sequence[Samples]) -> Iterator[Batch]:
        """Each block of held-out samples, as they are."""
        for pixels, rows, labels in self.held_out.take(blocks):
            yield Batch(images=self._plain(pixels, rows), labels=labels)

    def _plain(self, pixels: Tensor, rows: Tensor) -> Tensor:
        return augment.normalized(pixels.index_select(0, rows))

    def _augmented(self, piece: Piece, pixels: Tensor, rows: Tensor) -> Tensor:
        moves = augment.moves(
            self.data.augment,
            piece.samples,
            shape=self.shape,
            seed=self.seed,
            epoch=piece.epoch,
            mirror=self.mirror,
        )
        shifts = on_device(moves.packed(), rows.device)
        return augment.apply(pixels, rows, shifts, gray=moves.gray)


def open_loader(
    sets: Sets,
    data: Data,
    *,
    seed: int,
    device: torch.device,
    cores: int,
    say: Callable[[str], None] | None = None,
    pulse: Pulse | None = None,
    host: Host = ALONE,
) -> Loader:
    """Read everything now (memory), or get ready to read as it is needed (workers).

    Args:
        cores: how many this rank may use.
        say: takes one line for each image that is skipped; without it they go to stderr, to this rank's log.
        host: the ranks of this machine, which share what they hold in memory.

    Raises:
        Failure: DATA or NO_INPUT, naming the images; DATA where workers would read each other's places in a file; what
            filling data.cache raises.
    """
    before, sets = sets.notes, cached.use(sets, data, host, pulse or Pulse())
    kind, workers = chosen(sets, data, cores)
    if kind == "workers" and workers and sets.shared:
        raise _shared(sets.shared, data)
    broken = Ledger(data.max_bad_images, say or _to_stderr)

    def pool(name: str, source: Source, *, replace: bool) -> InMemory | Staged | ByWorkers:
        side = Side(name=name, source=source, ledger=broken, most=data.max_bad_images, replace=replace)
        if kind == "memory":
            return in_memory(side, sets.shape.stored, device, cores, pulse, host)
        return ByWorkers(side, workers, device, stay=not replace)

    training = pool("training", sets.training, replace=True)
    return Loader(
        training=training,
        held_out=pool("held out", sets.held_out, replace=False),
        shape=sets.shape,
        mirror=sets.mirror,
        data=data,
        seed=seed,
        kind=str(training),
        broken=broken,
        paths=getattr(sets.training, "paths", None),
        workers=0 if kind == "memory" else workers,
        notes=sets.notes[len(before) :],
    )


def chosen(sets: Sets, data: Data, cores: int) -> tuple[Literal["memory", "workers"], int]:
    """What data.loader and data.workers come to for a rank that may use so many processors."""
    fits = sets.bytes_ <= LARGEST_IN_MEMORY
    kind = data.loader if data.loader != "auto" else "memory" if fits else "workers"
    return kind, min(8, max(1, cores - 1)) if data.workers == "auto" else data.workers


def _shared(path: str, data: Data) -> Failure:
    return Failure(
        "data workers would read each other's places in a file that was open before they were started",
        found=f"{path}, whose position moves as items of {data.name} are read",
        expected="a file that each process opens for itself",
        fix="open it in __getitem__ at the first read, or read with os.pread; or set data.workers=0",
        code=ExitCode.DATA,
    )


def _to_stderr(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _wanted(pieces: Iterable[Piece], kept: list[Piece]) -> Iterator[Samples]:
    for piece in pieces:
        kept.append(piece)
        yield piece.samples
