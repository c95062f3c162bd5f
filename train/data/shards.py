"""Reads images out of tar shards by their number, without opening a file for each."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt
import torch

from entrypoint import ExitCode, Failure, print_message
from train.config.schema import DataConfig
from train.data import class_folders, decode, partition, shard_index, shard_reading
from train.data.decode import ImageBytes
from train.data.encoded_images import EncodedImageSource
from train.data.preprocessing import configured_preprocessing
from train.data.shape import COLOR_CHANNELS, Shape, height_and_width
from train.data.shard_index import Entries, ShardIndex
from train.data.shard_reading import OPEN_SHARDS, Located, ReadAhead
from train.data.splits import DataSplits, SampleIndices, SampleSource

NAME_BYTES: Final = 100  # of a tar header, which is the block before the data


@dataclass(frozen=True, slots=True, eq=False)
class ShardFiles(Sequence[str]):
    """The names of images as SHARD:MEMBER, for messages and tables. They are read from the shards: the index has none.

    entries: ENTRY [images]. ahead: what was read ahead of them. copies: the folder in which copies of the shards
    appear, with data.stage.
    """

    folder: Path
    shards: tuple[str, ...]
    entries: Entries
    ahead: ReadAhead = field(default_factory=ReadAhead)
    copies: Path | None = None

    def __len__(self) -> int:
        return len(self.entries)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> ShardFiles: ...

    def __getitem__(self, index: int | slice) -> str | ShardFiles:
        if isinstance(index, slice):
            return replace(self, entries=self.entries[index], ahead=ReadAhead())
        try:
            return self._name(index, self._read(index, 0))
        except OSError:
            return f"{self._shard(index)}:image {index}"

    def image(self, index: int) -> ImageBytes:
        """The bytes of an image, as they were indexed.

        Raises:
            Failure: DATA for other bytes; NO_INPUT or IO if the shard cannot be read.
        """
        length, crc32 = int(self.entries[index]["length"]), int(self.entries[index]["crc32"])
        try:
            block = self.ahead.read(index, shard_index.BLOCK + length) or self._read(index, length)
            is_intact = zlib.crc32(block[shard_index.BLOCK :]) == crc32
            if not is_intact and self.copies is not None:
                block = self._read_original(index, length)
                is_intact = zlib.crc32(block[shard_index.BLOCK :]) == crc32
                if is_intact:
                    self._remove_damaged_copy(self.copies / self._shard(index))
        except OSError as error:
            raise decode.unreadable_image_failure(self.folder / self._shard(index), index, error) from error
        name, data = self._name(index, block), block[shard_index.BLOCK :]
        if not is_intact:
            raise Failure(
                f"image {index} is not what was indexed",
                found=f"{self.folder / name}: {'cut short' if len(data) < length else 'its bytes have another crc32'}",
                fix=f"copy the shard again; or, if it is right: train data index {self.folder}; or skip the image with "
                "data.max_bad_images=1",
                code=ExitCode.DATA,
            )
        return ImageBytes(str(self.folder / name), data)

    def _shard(self, index: int) -> str:
        return self.shards[int(self.entries[index]["shard"])]

    def _read(self, index: int, length: int) -> bytes:
        """The header of an image, and so many bytes of it. Raises OSError."""
        name, offset = self._shard(index), int(self.entries[index]["offset"])
        copy = None if self.copies is None else str(self.copies / name)
        try:
            handle = OPEN_SHARDS.handle(str(self.folder / name), copy)
            return os.pread(handle, shard_index.BLOCK + length, offset - shard_index.BLOCK)
        except OSError:
            if copy is None:
                raise
            return self._read_original(index, length)

    def _read_original(self, index: int, length: int) -> bytes:
        """As `_read`, from data.root: the node's own disk may damage a copy. Raises OSError."""
        with open(self.folder / self._shard(index), "rb", buffering=0) as file:
            offset = int(self.entries[index]["offset"])
            return os.pread(file.fileno(), shard_index.BLOCK + length, offset - shard_index.BLOCK)

    def _remove_damaged_copy(self, copy: Path) -> None:
        """Let nobody open this copy again. The process that removes it, one of all, says so."""
        with suppress(OSError):
            copy.unlink()
            line = f"warning: data.stage: {copy} is damaged; its images are read from {self.folder} from now on"
            print_message(line, sys.stderr)

    def _name(self, index: int, block: bytes) -> str:
        return f"{self._shard(index)}:{os.fsdecode(block[:NAME_BYTES].split(bytes(1), 1)[0])}"


@dataclass(frozen=True, slots=True)
class ShardSource(EncodedImageSource):
    """The images of a split in tar shards, and their classes."""

    paths: ShardFiles

    def image(self, sample: int) -> ImageBytes:
        """The bytes of an image. Raises Failure: as `ShardFiles.image`."""
        return self.paths.image(sample)

    def read_ahead(self, requests: Iterable[tuple[Any, SampleIndices]]) -> Iterator[tuple[Any, SampleIndices]]:
        """The requests with the offsets of their samples in memory that is shared with the workers, which are forked
        later. Samples that lie far from each other, as in a balanced order, are read one by one."""
        requests = iter(requests)
        first = list(shard_reading.first_requests(requests))
        if not self.paths.ahead.is_decided:
            paths = self.paths
            paths.ahead.decide(paths.folder, paths.shards, paths.entries, first, paths.copies)
        requests = chain(first, requests)
        runs = self.paths.ahead.runs
        return requests if runs is None else shard_reading.located_requests(runs, requests)

    def stop_reading_ahead(self) -> None:
        """The stream of requests has ended."""
        if self.paths.ahead.runs is not None:
            self.paths.ahead.runs.stop()

    def release(self, located: Located[Any]) -> None:
        """The samples of this request have been decoded."""
        if self.paths.ahead.runs is not None:
            self.paths.ahead.runs.release(located.samples)


def open_shards(data: DataConfig) -> DataSplits:
    """All splits. Raises Failure: as `shard_index.read_index`; DATA for another number of classes."""
    index = shard_index.read_index(Path(data.root))
    if data.classes not in (len(index.classes), DataConfig().classes):
        raise Failure(
            "data.classes is not the number of classes of the shards",
            found=f"{len(index.classes)} classes in {index.folder / shard_index.FACTS_FILE}",
            expected=f"data.classes: {data.classes}",
            fix=f"set data.classes to {len(index.classes)}, or leave it out",
            code=ExitCode.DATA,
        )
    training, warnings = _source(index, index.part("training"), data), tuple[str, ...]()
    validation = _source(index, index.part("validation"), data)
    test = _source(index, index.part("test"), data) if index.count("test") else None
    labels = training.labels.numpy()
    parts = partition.partition_samples(labels, data, has_validation=index.count("validation") > 0)
    if parts.test.any():
        test = _select(training, parts.test)
    if not index.count("validation"):
        validation = _select(training, parts.validation)
        counts = (
            np.bincount(labels[mask], minlength=len(index.classes)) for mask in (parts.training, parts.validation)
        )
        if parts.validation.any():
            warnings = class_folders.missing_validation_warnings(index.classes, *(each.tolist() for each in counts))
    if not parts.training.all():
        training = _select(training, parts.training)
    return DataSplits(
        training=training,
        validation=validation,
        test=test,
        classes=index.classes,
        shape=Shape(channels=COLOR_CHANNELS[data.color], size=height_and_width(data.image_size)),
        notes=parts.notes,
        warnings=warnings,
    )


def with_copies(splits: DataSplits, copies: Path) -> DataSplits:
    """The same splits of shards, read from the copies in this folder as soon as these appear."""

    def read_copies(source: SampleSource) -> SampleSource:
        assert isinstance(source, ShardSource)
        return replace(source, paths=replace(source.paths, ahead=ReadAhead(), copies=copies))

    return replace(
        splits,
        training=read_copies(splits.training),
        validation=read_copies(splits.validation),
        test=None if splits.test is None else read_copies(splits.test),
    )


def _source(index: ShardIndex, entries: Entries, data: DataConfig) -> ShardSource:
    return ShardSource(
        ShardFiles(index.folder, tuple(shard.name for shard in index.shards), entries),
        torch.from_numpy(entries["label"].astype(np.int64)),
        data.image_size,
        configured_preprocessing(data),
        COLOR_CHANNELS[data.color],
    )


def _select(source: ShardSource, chosen: npt.NDArray[np.bool_]) -> ShardSource:
    rows = np.flatnonzero(chosen)
    paths = replace(source.paths, entries=source.paths.entries[rows], ahead=ReadAhead())
    return replace(source, paths=paths, labels=source.labels[torch.from_numpy(rows)])
