"""Loads batches on the device, augmented for training and unchanged for evaluation.

Before training it checks that shared memory is large enough for the workers' batches.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Final, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from entrypoint import ExitCode, Failure, Heartbeat, engines, print_message
from train.config.schema import DataConfig
from train.data import augment, decoded_cache
from train.data.augmenter import Augmenter, build_augmenter, needs_whole_images, refuse_stored_images
from train.data.batch import Batch, to_device
from train.data.gpu_decoding import decoder_for
from train.data.image_sizes import ProgressiveSize
from train.data.in_memory import DeviceDataset, HostDataset, load_in_memory
from train.data.preprocessing import (
    DEFAULT_PREPROCESSING,
    Preprocessing,
    configured_preprocessing,
    refuse_other_channels,
)
from train.data.sampler import MicroBatch
from train.data.shape import Shape
from train.data.splits import DataSplits, SampleIndices, SampleSource
from train.data.workers import (
    PREFETCH_FACTOR,
    SHARED_MEMORY_FOLDER,
    Request,
    Split,
    UnreadableLog,
    WorkerLoader,
    in_blocks,
)
from train.distributed.shared_memory import SINGLE_RANK, HostRanks
from train.tasks.registry import open_task

MAX_IN_MEMORY_BYTES: Final = 2 * 2**30  # pixels of both splits together


class SplitReader(Protocol):
    """Reads the samples of one split: from a device's memory, a host's, or in workers, as `open_loader` chooses."""

    def read(self, requests: Iterable[tuple[Request, SampleIndices]]) -> Iterator[tuple[Request, Batch]]:
        """For each (request, samples): the request unchanged, and the samples with their stored images.

        In evaluation a request without a readable sample is left out.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLoader:
    """Yields batches of both splits.

    description: where the images are kept, or how many workers read them. workers: processes that read.
    augmenter: without what data workers have done already. broken: the files that this rank has skipped so far. paths:
    the training files, if the samples are files. notes: about data.cache. transform: augment.apply, or the same
    compiled. weights: as in `DataSplits`, on the device. progressive_size: with data.progressive_size.
    """

    training: SplitReader
    validation: SplitReader
    shape: Shape
    mirror: bool
    augmenter: Augmenter
    seed: int
    description: str
    broken: UnreadableLog
    paths: Sequence[str] | None = None
    workers: int = 0
    notes: tuple[str, ...] = ()
    transform: Callable[..., Tensor] = augment.apply
    weights: Tensor | None = None
    preprocessing: Preprocessing = DEFAULT_PREPROCESSING
    progressive_size: ProgressiveSize | None = None

    def compiled(self, batch: int) -> BatchLoader:
        """A loader that augments batches of this size by one compiled function: 3 kernels instead of 25.

        Only for images that lie on a GPU, whose batches all have one shape.
        """
        on_gpu = isinstance(self.training, DeviceDataset) and self.training.device.type == "cuda"
        if not on_gpu or augment.is_identity(self.augmenter.moves):
            return self
        loader = replace(self, transform=torch.compile(augment.apply, dynamic=False))
        first = MicroBatch(step=0, number=0, epoch=0, samples=np.zeros(batch, np.int64))
        for _ in loader.train([first]):  # makes the code
            pass
        return loader

    def train(self, micro_batches: Iterable[MicroBatch]) -> Iterator[tuple[MicroBatch, Batch]]:
        """Each micro batch with its samples, augmented."""
        drawn_moves: Iterator[tuple[Tensor, bool]] | None = None
        drawn: Iterable[MicroBatch] = ()
        if has_moves := not augment.is_identity(self.augmenter.moves):
            # tee keeps what only one of them has taken: a block at most
            micro_batches, drawn = itertools.tee(micro_batches)
        for micro_batch, batch in self.training.read((each, each.samples) for each in micro_batches):
            keys, epoch = micro_batch.augmentation_keys, micro_batch.epoch
            if self.augmenter.stored:
                batch["image"] = self.augmenter.augment_stored(_take_pixels(batch), keys, epoch)
            if has_moves:
                pixels, rows = batch["image"], batch.pop("row", None)
                drawn_moves = drawn_moves or self._draw_ahead(drawn, pixels.device)
                rows = torch.arange(len(keys), device=pixels.device) if rows is None else rows
                shifts, gray = next(drawn_moves)
                batch["image"] = self.transform(pixels, rows, shifts, gray=gray, preprocessing=self.preprocessing)
            else:
                batch["image"] = self._plain(batch)
            if self.progressive_size is not None:
                batch["image"] = self.progressive_size.scale(batch["image"], epoch)
            batch["image"] = self.augmenter.augment_values(batch["image"], keys, epoch)
            self.augmenter.mix(batch, keys, epoch)
            if self.weights is not None:  # a sample that replaces an unreadable one gets the weight of that one
                batch["weight"] = self.weights[to_device(micro_batch.samples, self.weights.device)]
            yield micro_batch, batch

    def evaluate(self, blocks: Sequence[SampleIndices]) -> Iterator[Batch]:
        """Each block of validation samples, not augmented."""
        for _, batch in self.validation.read(enumerate(blocks)):
            batch["image"] = self._plain(batch)
            yield batch

    def _plain(self, batch: Batch) -> Tensor:
        return augment.normalize(_take_pixels(batch), self.preprocessing)

    def _draw_ahead(self, micro_batches: Iterable[MicroBatch], device: torch.device) -> Iterator[tuple[Tensor, bool]]:
        """The `shifts` and `gray` of `augment.apply` for each micro batch.

        Those of several small micro batches are drawn and copied at once: most of the time would go into calls.
        """
        for epoch, of_epoch in itertools.groupby(micro_batches, attrgetter("epoch")):
            for block in in_blocks(of_epoch, lambda micro_batch: micro_batch.samples):
                parameters = augment.draw_parameters(
                    self.augmenter.moves,
                    np.concatenate([micro_batch.augmentation_keys for micro_batch in block]),
                    shape=self.shape,
                    seed=self.seed,
                    epoch=epoch,
                    mirror=self.mirror,
                    shift=self.augmenter.shift,
                )
                ends = np.cumsum([len(micro_batch.samples) for micro_batch in block])[:-1]
                parts = np.split(parameters.packed(), ends, axis=1)
                flat = to_device(np.concatenate([part.ravel() for part in parts]), device)
                for part, shifts in zip(parts, torch.split(flat, [part.size for part in parts]), strict=True):
                    yield shifts.view(part.shape), parameters.gray


def _take_pixels(batch: Batch) -> Tensor:
    """The stored images of the batch alone, [n, *stored]."""
    pixels: Tensor = batch["image"]
    rows = batch.pop("row", None)
    return pixels if rows is None else pixels.index_select(0, rows)


def open_loader(
    sets: DataSplits,
    data: DataConfig,
    *,
    seed: int,
    device: torch.device,
    cores: int,
    say: Callable[[str], None] | None = None,
    pulse: Heartbeat | None = None,
    host: HostRanks = SINGLE_RANK,
) -> BatchLoader:
    """Read all images now (memory), or prepare to read them when they are needed (workers).

    Args:
        cores: how many this rank may use.
        say: called with a line for each skipped image; by default it writes to stderr, so to this rank's log.
        host: the ranks of this machine, which share the images in memory.

    Raises:
        Failure: USAGE for a data.augment that these samples or this data.loader cannot take; DATA or NO_INPUT, naming
            the images; DATA if workers would share the offset of an open file; what
            filling data.cache raises.
    """
    refuse_stored_images(sets, data)
    augmenter, preprocessing = build_augmenter(sets, data, seed), configured_preprocessing(data)
    refuse_other_channels(preprocessing, sets.shape.channels)
    before, sets = sets.notes, decoded_cache.use_cache(sets, data, host, pulse or Heartbeat())
    mode, workers = choose_loader(sets, data, cores)
    if mode == "workers" and workers and sets.shared:
        raise _shared_file_failure(sets.shared, data)
    broken = UnreadableLog(data.max_bad_images, say or _write_to_stderr)
    task = open_task(sets.task, sets.classes, sets.target)

    def open_reader(name: str, source: SampleSource, *, replace: bool) -> DeviceDataset | HostDataset | WorkerLoader:
        split = Split(
            name=name,
            source=source,
            collate=task.collate,
            ledger=broken,
            most=data.max_bad_images,
            replace=replace,
        )
        if mode == "memory":
            shape = sets.shape if replace else sets.evaluated_shape
            return load_in_memory(split, shape.stored, device, cores, pulse, host)
        if not replace:
            return WorkerLoader(split, workers, device, stay=True)
        return WorkerLoader(split, workers, device, augmenter=in_reader, decoder=decoder)

    decoder = decoder_for(sets, data, augmenter, device, broken.warn)
    in_reader = augmenter if augmenter.acts_in_reader else None
    training = open_reader("training", sets.training, replace=True)
    return BatchLoader(
        training=training,
        validation=open_reader("validation", sets.validation, replace=False),
        shape=sets.shape,
        mirror=sets.mirror,
        augmenter=replace(augmenter, stored=()) if mode == "workers" and decoder is None else augmenter,
        seed=seed,
        description=str(training),
        broken=broken,
        paths=sets.training.file_names,
        workers=0 if mode == "memory" else workers,
        notes=sets.notes[len(before) :],
        weights=None if sets.weights is None else sets.weights.to(device),
        preprocessing=preprocessing,
        progressive_size=ProgressiveSize.of_config(data, sets.shape),
    )


def choose_loader(sets: DataSplits, data: DataConfig, cores: int) -> tuple[Literal["memory", "workers"], int]:
    """Resolve data.loader and data.workers for a rank that may use `cores` cores."""
    fits = sets.bytes_ <= MAX_IN_MEMORY_BYTES and not needs_whole_images(sets, data)
    mode = data.loader if data.loader != "auto" else "memory" if fits else "workers"
    return mode, min(8, max(1, cores - 1)) if data.workers == "auto" else data.workers


def _shared_file_failure(path: str, data: DataConfig) -> Failure:
    return Failure(
        "data workers would share the offset of a file that was opened before they were forked",
        found=f"{path}, whose position moves as items of {data.name} are read",
        expected="a file that each process opens for itself",
        fix="open it in the factory or in __getitem__, not in a variable of the module; or set data.workers=0",
        code=ExitCode.DATA,
    )


def _write_to_stderr(line: str) -> None:
    print_message(line, sys.stderr)


MIB: Final = 2**20


def refuse_small_shared_memory(
    workers: int, batch_bytes: int, *, ranks: int, folder: Path = Path(SHARED_MEMORY_FOLDER)
) -> None:
    """Refuse to start if the batches of the data workers would not fit into shared memory.

    Training and evaluation workers exist at the same time, so the lack would show only at the first evaluation.

    Args:
        workers: of one rank.
        batch_bytes: one training batch and one validation batch together.
        ranks: on this node.

    Raises:
        Failure: RESOURCE.
    """
    need = ranks * workers * PREFETCH_FACTOR * batch_bytes
    try:
        disk = os.statvfs(folder)
    except OSError:
        return  # no such folder: torch reports it
    free = disk.f_bavail * disk.f_frsize
    if need <= free:
        return
    text = f"{workers} worker{'s' * (workers != 1)}"
    who = text if ranks == 1 else f"{ranks} ranks x {text}"
    fewer = workers * free // need
    raise Failure(
        "shared memory is too small for the data workers",
        found=f"{folder} of {disk.f_blocks * disk.f_frsize // MIB} MiB, {free // MIB} MiB free",
        expected=f"{-(-need // MIB)} MiB for {who} with {PREFETCH_FACTOR} batches of training and of evaluation each",
        fix=f"{engines.fix('shm', size=-(-need // 2**30) + 1)}; or set data.workers={fewer}",
        code=ExitCode.RESOURCE,
    )
