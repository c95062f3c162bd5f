"""Reads images out of tar shards by their number, without opening a file for each."""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, overload

import numpy as np
import numpy.typing as npt
import torch

from entrypoint import ExitCode, Failure, print_message, shell_command
from train.config.schema import DataConfig
from train.data import decode, shard_index, shard_reading
from train.data.decode import ImageBytes
from train.data.encoded_images import EncodedImageSource
from train.data.labels import missing_validation_warnings, number_scale
from train.data.preprocessing import configured_preprocessing
from train.data.shape import COLOR_CHANNELS, Shape, height_and_width
from train.data.shard_index import ShardIndex
from train.data.shard_labels import LabelKind
from train.data.shard_members import BLOCK
from train.data.shard_reading import OPEN_SHARDS, Located, ReadAhead
from train.data.shard_runs import ChosenEntries, Int64Array, RemainingEntries, Selection, ShardLayout
from train.data.splits import DataSplits, SampleIndices, SampleSource
from train.distributed.shared_memory import SINGLE_RANK, HostRanks
from train.tasks import AUTO, CLASSIFICATION, TASKS

GATHERED_AT_A_TIME: Final = 2**16  # labels
NAME_BYTES: Final = 100  # of a tar header, which is the block before the data


@dataclass(frozen=True, slots=True, eq=False)
class ShardFiles(Sequence[str]):
    """The names of images as SHARD:MEMBER, for messages and tables. They are read from the shards: the index has none.

    ahead: what was read ahead of them.
    """

    layout: ShardLayout
    ahead: ReadAhead = field(default_factory=ReadAhead)

    def __len__(self) -> int:
        return len(self.layout.selection)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> ShardFiles: ...

    def __getitem__(self, index: int | slice) -> str | ShardFiles:
        if isinstance(index, slice):
            chosen = ChosenEntries(self.layout.selection.entries(np.arange(*index.indices(len(self)))))
            return ShardFiles(replace(self.layout, selection=chosen))
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        shard, entry = self._locate(index)
        try:
            return _member_name(shard, self._read(shard, entry, 0))
        except OSError:
            return f"{shard}:image {index}"

    def image(self, index: int) -> ImageBytes:
        """The bytes of an image, as they were indexed.

        Raises:
            Failure: DATA for other bytes; NO_INPUT or IO if the shard cannot be read.
        """
        shard, entry = self._locate(index)
        folder, length = self.layout.folder, int(entry["length"])
        try:
            block = self.ahead.read(index, BLOCK + length) or self._read(shard, entry, length)
            is_intact = _is_intact(block, entry)
            if not is_intact and self.layout.copies is not None:
                block = self._read_original(shard, entry, length)
                is_intact = _is_intact(block, entry)
                if is_intact:
                    self._remove_damaged_copy(self.layout.copies / shard)
        except OSError as error:
            raise decode.unreadable_image_failure(folder / shard, index, error) from error
        name, data = _member_name(shard, block), block[BLOCK:]
        if not is_intact:
            raise Failure(
                f"image {index} is not what was indexed",
                found=f"{folder / name}: {'cut short' if len(data) < length else 'its bytes have another crc32'}",
                fix=f"copy the shard again; or, if it is right: {shell_command('train data index', folder)}; or skip "
                "the image with data.max_bad_images=1",
                code=ExitCode.DATA,
            )
        return ImageBytes(str(folder / name), data)

    def _locate(self, index: int) -> tuple[str, np.void]:
        """The shard that holds an image, and its entry."""
        entry = int(self.layout.selection.entries(index))
        return self.layout.shard_of(entry), self.layout.entries[entry]

    def _read(self, shard: str, entry: np.void, length: int) -> bytes:
        """The header of an image, and so many bytes of it. Raises OSError."""
        path, copy = self.layout.paths(shard)
        try:
            return _read_at(OPEN_SHARDS.handle(path, copy), entry, length)
        except OSError:
            if copy is None:
                raise
            return self._read_original(shard, entry, length)

    def _read_original(self, shard: str, entry: np.void, length: int) -> bytes:
        """As `_read`, from data.root: the node's own disk may damage a copy. Raises OSError."""
        with open(self.layout.folder / shard, "rb", buffering=0) as file:
            return _read_at(file.fileno(), entry, length)

    def _remove_damaged_copy(self, copy: Path) -> None:
        """Let nobody open this copy again. The process that removes it, one of all, says so."""
        with suppress(OSError):
            copy.unlink()
            line = f"warning: data.stage: {copy} is damaged; its images are read from {self.layout.folder} from now on"
            print_message(line, sys.stderr)


def _read_at(handle: int, entry: np.void, length: int) -> bytes:
    return os.pread(handle, BLOCK + length, int(entry["offset"]) - BLOCK)


def _is_intact(block: bytes, entry: np.void) -> bool:
    return zlib.crc32(block[BLOCK:]) == int(entry["crc32"])


def _member_name(shard: str, block: bytes) -> str:
    return f"{shard}:{os.fsdecode(block[:NAME_BYTES].split(bytes(1), 1)[0])}"


@dataclass(frozen=True, slots=True)
class ShardSource(EncodedImageSource):
    """The images of a split in tar shards, and their classes, as integers of any width."""

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
            self.paths.ahead.decide(self.paths.layout, first)
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


def open_shards(data: DataConfig, host: HostRanks = SINGLE_RANK) -> DataSplits:
    """All splits. Raises Failure: as `shard_index.read_index`; DATA for another number of classes."""
    index = shard_index.read_index(Path(data.root))
    _refuse_other_task(data, index.labels)
    has_classes = TASKS[index.labels.task].has_classes
    if has_classes and data.classes not in (len(index.labels.classes), DataConfig().classes):
        raise Failure(
            "data.classes is not the number of classes of the shards",
            found=f"{len(index.labels.classes)} classes in {index.folder / shard_index.FACTS_FILE}",
            expected=f"data.classes: {data.classes}",
            fix=f"set data.classes to {len(index.labels.classes)}, or leave it out",
            code=ExitCode.DATA,
        )
    ends = [index.bounds(split)[1] for split in shard_index.SPLITS]
    validation, test = np.arange(ends[0], ends[1]), np.arange(ends[1], ends[2])
    training = RemainingEntries(ends[0])
    chosen, chosen_test, notes = shard_index.split_training(index, data)
    left_out = np.sort(np.concatenate([chosen, chosen_test]))
    if len(left_out):
        training = RemainingEntries(ends[0], left_out=left_out, numbers=left_out - np.arange(len(left_out)))
        validation = chosen if len(chosen) else validation
        test = chosen_test if len(chosen_test) else test
    layout = ShardLayout(
        folder=index.folder,
        shards=tuple(shard.name for shard in index.shards),
        entries=index.entries,
        shard_starts=np.cumsum([0, *(shard.images for shard in index.shards)]),
        run_starts=index.run_starts,
        selection=training,
    )

    def open_source(selection: Selection, labels: npt.NDArray[Any]) -> ShardSource:
        return ShardSource(
            ShardFiles(replace(layout, selection=selection)),
            torch.from_numpy(labels),
            data.image_size,
            configured_preprocessing(data),
            COLOR_CHANNELS[data.color],
        )

    def open_chosen(entries: Int64Array) -> ShardSource:
        return open_source(ChosenEntries(entries), index.labels.values(index.entries["label"][entries]))

    task, classes = index.labels.task, index.labels.classes
    sources = open_source(training, _training_labels(index, training, host)), open_chosen(validation)
    warnings = tuple[str, ...]()
    if len(chosen):
        warnings = missing_validation_warnings(task, classes, *(source.labels.numpy() for source in sources))
    return DataSplits(
        training=sources[0],
        validation=sources[1],
        test=open_chosen(test) if len(test) else None,
        classes=classes,
        shape=Shape(channels=COLOR_CHANNELS[data.color], size=height_and_width(data.image_size)),
        notes=notes,
        warnings=warnings,
        task=task,
        target=None if has_classes else number_scale(sources[0].labels.numpy(), partial(_one_number_failure, index)),
    )


def _refuse_other_task(data: DataConfig, labels: LabelKind) -> None:
    if data.task not in (AUTO, labels.task):
        raise Failure(
            "the shards were indexed for another task",
            found=f"data.task: {data.task}, and an index for {labels.task}",
            fix="leave data.task out, or index them again: "
            + shell_command("train data index", data.root, f"data.task={data.task}"),
            code=ExitCode.USAGE,
        )


def _one_number_failure(index: ShardIndex, number: str) -> Failure:
    return Failure(
        "all images to train on have the same number",
        found=f"{number} in {index.folder}",
        fix="give the training images different numbers, or another data.val_fraction",
        code=ExitCode.DATA,
    )


def with_copies(splits: DataSplits, copies: Path) -> DataSplits:
    """The same splits of shards, read from the copies in this folder as soon as these appear."""

    def read_copies(source: SampleSource) -> SampleSource:
        assert isinstance(source, ShardSource)
        return replace(source, paths=ShardFiles(replace(source.paths.layout, copies=copies)))

    return replace(
        splits,
        training=read_copies(splits.training),
        validation=read_copies(splits.validation),
        test=None if splits.test is None else read_copies(splits.test),
    )


def _training_labels(index: ShardIndex, training: RemainingEntries, host: HostRanks) -> npt.NDArray[Any]:
    """As `SampleSource.labels`: those of the mapped index, or in memory that the ranks of a machine share."""
    column = index.entries["label"]
    if index.labels.task == CLASSIFICATION and len(training) == training.count:
        return column[: training.count]

    def gather() -> tuple[None, list[npt.NDArray[Any]]]:
        no_values = index.labels.values(column[:0])
        labels = np.empty((len(training), *no_values.shape[1:]), no_values.dtype)
        for first in range(0, len(training), GATHERED_AT_A_TIME):
            part = slice(first, min(first + GATHERED_AT_A_TIME, len(training)))
            labels[part] = index.labels.values(column[training.entries(np.arange(part.start, part.stop))])
        return None, [labels]

    _, (labels,) = host.first_shared(gather)
    return labels
