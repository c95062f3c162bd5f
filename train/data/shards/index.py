"""The index of a folder of tar shards: where each image lies, its label and its crc32.

Files beside the shards: index.npy has an entry of 24 bytes for each image, runs.npy the first entry of each run of
about 1 MiB, and order.npy the order from which validation and test images are taken, 4 bytes for each image. If images
have groups, groups.npy has that of each image to train on, 8 bytes. They are mapped into memory. index.json names
shards and classes. `train data index` writes all in one pass over the shards. This module does not import torch.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from entrypoint import ExitCode, Failure, file_writer, list_some, shell_command
from train import file_lock, files
from train.config import batches
from train.config.schema import DataConfig, Rule, one_of
from train.data import partition
from train.data.class_folders import TRAINING_FOLDER_NAMES, VALIDATION_FOLDER_NAMES
from train.data.process_pool import map_in_processes
from train.data.shard_labels import MAX_CLASSES, Label, LabelKind, number_labels
from train.data.shards.members import BLOCK, Skipped, damaged_shard_failure, describe_skipped, read_images
from train.data.shards.order import Entries, Int64Array, cut_into_runs
from train.data.sources.arrays import PARSE_ERRORS, read_npy_header
from train.fields import MAX_INT64, TEXTS, check_fields, whole_number
from train.tasks import AUTO, MULTI_LABEL, TASKS

ENTRIES_FILE: Final = "index.npy"
RUNS_FILE: Final = "runs.npy"
ORDER_FILE: Final = "order.npy"
SETS_FILE: Final = "label_sets.npy"  # only of several labels per image
GROUPS_FILE: Final = "groups.npy"  # only of images with groups
FACTS_FILE: Final = "index.json"
ARRAY_FILES: Final = (ENTRIES_FILE, RUNS_FILE, ORDER_FILE, SETS_FILE, GROUPS_FILE)
INDEX_FILES: Final = (*ARRAY_FILES, FACTS_FILE)
LOCK_NAME: Final = ".writer"  # of whoever packs or indexes
VERSION: Final = 3  # raised whenever the same shards would be indexed otherwise
ENTRY: Final = np.dtype([("offset", "<u8"), ("length", "<u4"), ("crc32", "<u4"), ("label", "<i8")])
MAX_UINT32: Final = 2**32 - 1
READ_BYTES: Final = 4 * 2**20
CHECKED_AT_A_TIME: Final = 2**18  # entries
MIN_IMAGES: Final = 20  # with fewer, nothing is said about nearly one class per image
# Why a file is no shard -> the files. macOS keeps in `._NAME.tar` what its file system knows of NAME.tar.
APPLE: Final = "of macOS, which are no tars"
COMPRESSED: Final = "compressed, in which no image can be read alone"
LEFT_OUT: Final = {
    APPLE: ("._*.tar", "*/._*.tar"),
    COMPRESSED: ("*.tar.*", "*/*.tar.*", "*.tgz", "*/*.tgz"),
    "in deeper folders": ("*/*/*.tar",),
}
Split = Literal["training", "validation", "test"]
SPLITS: Final[tuple[Split, ...]] = ("training", "validation", "test")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A tar file of the folder. name: relative to the folder. size: bytes; images: entries of the index."""

    name: str
    split: Split
    size: int
    modified_ns: int
    images: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardIndex:
    """An index that fits the shards. The shards of a split follow each other, and so do their entries.

    entries: ENTRY [images]. run_starts: the first entry of each run, and the end, int64 [runs + 1]. order: of the
    images to train on, as `partition.order_by_share`, uint32 or int64 [n]. groups: of the images to train on, which
    stay in one split, int64 [n]. They are mapped.
    """

    folder: Path
    shards: tuple[Shard, ...]
    labels: LabelKind
    entries: Entries
    run_starts: Int64Array
    order: npt.NDArray[np.uint32 | np.int64]
    groups: Int64Array | None = None

    def bounds(self, split: Split) -> tuple[int, int]:
        """The first entry of a split, and the end."""
        before = sum(count_images(self.shards, other) for other in SPLITS[: SPLITS.index(split)])
        return before, before + count_images(self.shards, split)


def _is_shard_name(name: object) -> bool:
    """Whether it is one of `list_shards`: of a tar file in the folder, or in a folder directly in it."""
    parts = name.split("/") if isinstance(name, str) else []
    # Hidden tars are shards: no dot file that matters to anybody ends in .tar.
    are_plain = all(part not in (".", "..") and files.is_plain_name(part.replace(".", "_")) for part in parts)
    return 1 <= len(parts) <= 2 and are_plain and parts[-1].endswith(".tar")


def list_left_out(folder: Path, reason: str) -> list[str]:
    """The files of a folder that are no shards for this one of LEFT_OUT. Raises OSError."""
    return sorted({path.relative_to(folder).as_posix() for each in LEFT_OUT[reason] for path in folder.glob(each)})


FIELDS: Final = {
    "version": Rule(
        holds=lambda version: type(version) is int and version == VERSION,
        expected=f"{VERSION}: another version wrote it",
    ),
    "task": one_of(*TASKS),
    "classes": Rule(
        holds=lambda names: TEXTS.holds(names) and len(set(names)) == len(names) <= MAX_CLASSES,
        expected=f"a list of 1 to {MAX_CLASSES:,} texts, each once",
    ),
    "shards": Rule(holds=lambda shards: isinstance(shards, list) and len(shards) > 0, expected="a list of shards"),
    "groups": whole_number(0),
}
SHARD_FIELDS: Final = {
    "name": Rule(holds=_is_shard_name, expected="the name of a tar file in the folder, or in a folder in it"),
    "split": one_of(*SPLITS),
    "size": whole_number(0),
    "modified_ns": whole_number(-MAX_INT64),
    "images": whole_number(0),
}


def count_images(shards: Sequence[Shard], split: Split) -> int:
    """The images of a split."""
    return sum(shard.images for shard in shards if shard.split == split)


def read_facts(folder: Path) -> tuple[tuple[Shard, ...], LabelKind, int]:
    """The shards, which `refuse_other_shards` compares with the files; what the labels are, whose sets are not read;
    and the number of groups, 0 if images have none.

    Raises:
        Failure: NO_INPUT without an index; DATA for a damaged one, naming the field.
    """
    try:
        facts = files.read_json(folder / FACTS_FILE)
        check_fields(facts, FIELDS)
        for number, fields in enumerate(facts["shards"]):
            check_fields(fields, SHARD_FIELDS, f"shards[{number}].")
        shards = tuple(Shard(**{name: fields[name] for name in SHARD_FIELDS}) for fields in facts["shards"])
        labels = LabelKind(task=facts["task"], classes=tuple(facts["classes"]))
        _refuse_contradictions(shards, labels)
    except FileNotFoundError:
        list_shards(folder)  # without shards an index is no help
        raise Failure(
            "these shards have no index yet",
            found=f"no {FACTS_FILE} in {folder.absolute()}",
            fix=shell_command("train data index", folder),
            code=ExitCode.NO_INPUT,
        ) from None
    except (OSError, ValueError) as error:
        raise _index_failure(folder, f"{folder / FACTS_FILE}: {error}") from error
    return shards, labels, facts["groups"]


def _refuse_contradictions(shards: Sequence[Shard], labels: LabelKind) -> None:
    """Raise ValueError for what no folder of shards can hold."""
    splits = [SPLITS.index(shard.split) for shard in shards]
    problems = {
        "classes: a number to predict has one name": not TASKS[labels.task].has_classes and len(labels.classes) > 1,
        "shards: a name is there twice": len({shard.name for shard in shards}) < len(shards),
        "shards: those of a split do not follow each other": splits != sorted(splits),
        "shards: one has more images than its size can hold": any(
            shard.images * BLOCK > shard.size for shard in shards
        ),
        "shards: they hold no image to train on": not count_images(shards, "training"),
    }
    if True in problems.values():
        raise ValueError([*problems][[*problems.values()].index(True)])


def refuse_other_shards(folder: Path, shards: Sequence[Shard]) -> None:
    """Compare the shards of an index with the files: sizes, and times of the last change.

    Raises:
        Failure: NO_INPUT for a missing shard; DATA for others than those that were indexed.
    """
    for shard in shards:
        path = folder / shard.name
        try:
            status = os.stat(path)
        except OSError as error:
            raise Failure(
                "a shard of the index cannot be read",
                found=f"{path}: {error.strerror}",
                fix="put it back; while a run lasts, its files must stay",
                code=ExitCode.NO_INPUT,
            ) from error
        if not stat.S_ISREG(status.st_mode):
            raise damaged_shard_failure(path, "it is not a regular file")
        if status.st_size != shard.size or status.st_mtime_ns != shard.modified_ns:
            changed = "size" if status.st_size != shard.size else "time of its last change"
            raise _index_failure(folder, f"{path} has another {changed} than when it was indexed")
    names = {shard.name for shard in shards}
    if others := sorted(name for name, _ in list_shards(folder) if name not in names):
        raise _index_failure(folder, f"{len(others)} shards are not in the index: {list_some(others)}")


def read_index(folder: Path) -> ShardIndex:
    """Map the index, whose content `refuse_wrong_entries` checks. Raises Failure: as `read_facts`."""
    shards, labels, groups = read_facts(folder)
    count, training = sum(shard.images for shard in shards), count_images(shards, "training")
    if labels.task == MULTI_LABEL:
        sets = _map_array(folder, SETS_FILE, np.dtype(np.uint8), (None, -(-len(labels.classes) // 8)))
        labels = replace(labels, sets=sets)
    order_type = np.dtype(np.uint32 if training <= MAX_UINT32 else np.int64)
    return ShardIndex(
        folder=folder,
        shards=shards,
        labels=labels,
        entries=_map_array(folder, ENTRIES_FILE, ENTRY, (count,)),
        run_starts=_map_array(folder, RUNS_FILE, np.dtype(np.int64), (None,)),
        order=_map_array(folder, ORDER_FILE, order_type, (training,)),
        groups=_map_array(folder, GROUPS_FILE, np.dtype(np.int64), (training,)) if groups else None,
    )


def _map_array(folder: Path, name: str, dtype: np.dtype[Any], shape: tuple[int | None, ...]) -> npt.NDArray[Any]:
    """shape: None for a length that may be any."""
    path = folder / name
    try:
        with files.open_regular_file(path) as file:
            actual, is_fortran, actual_dtype = read_npy_header(file)
            fits = len(actual) == len(shape) and all(
                length >= 0 and expected in (None, length) for expected, length in zip(shape, actual, strict=True)
            )
            if not fits or actual_dtype != dtype or is_fortran:
                raise ValueError(f"{actual_dtype} {actual} does not belong to {FACTS_FILE}")
            # Copy on write: torch asks for memory that may be written, and nothing is written.
            return np.memmap(file, dtype, "c", file.tell(), actual).view(np.ndarray)
    except (OSError, MemoryError, *PARSE_ERRORS) as error:
        raise _index_failure(folder, f"{path}: {error}") from error


def refuse_wrong_entries(index: ShardIndex) -> None:
    """Compare all entries, labels, runs and the order with what an index of these shards can hold.

    Raises:
        Failure: DATA, naming file and field.
    """
    entries, count, training = index.entries, len(index.entries), len(index.order)
    ends = np.cumsum([shard.images for shard in index.shards])
    sizes = np.array([shard.size for shard in index.shards], np.uint64)
    is_there = np.zeros(training, bool)
    for first in range(0, count, CHECKED_AT_A_TIME):
        part = entries[max(first - 1, 0) : first + CHECKED_AT_A_TIME]  # and the one before
        shard = np.searchsorted(ends, np.arange(len(part)) + max(first - 1, 0), side="right")
        size, offset, length = sizes[shard], part["offset"], part["length"].astype(np.uint64)
        outside = (offset < BLOCK) | (offset > size)
        overlap = (shard[1:] == shard[:-1]) & ((offset[1:] < offset[:-1]) | (offset[1:] - offset[:-1] < length[:-1]))
        wrong = {
            "length": length > size - np.where(outside, 0, offset),
            "offset": outside | np.append(False, overlap),
            "label": ~index.labels.allows(part["label"]),
        }
        for name, rows in wrong.items():
            if rows.any():
                row = int(rows.argmax())
                problem = f"{name} of image {max(first - 1, 0) + row} is {part[name][row]}"
                raise _index_failure(index.folder, f"{index.folder / ENTRIES_FILE}: {problem}, out of range")
        order = index.order[first : first + CHECKED_AT_A_TIME]
        is_there[order[(order >= 0) & (order < training)]] = True
    if not is_there.all():
        raise _index_failure(index.folder, f"{index.folder / ORDER_FILE}: it is no order of {training:,} images")
    if index.groups is not None and not ((index.groups >= 0) & (index.groups < training)).all():
        raise _index_failure(index.folder, f"{index.folder / GROUPS_FILE}: these are no groups of {training:,} images")
    starts = index.run_starts
    ends_with_all = len(starts) > 0 and (starts[0], starts[-1]) == (0, count)
    if not (ends_with_all and (np.diff(starts) > 0).all() and np.isin(ends, starts).all()):
        raise _index_failure(index.folder, f"{index.folder / RUNS_FILE}: these are no runs of {count:,} images")


def list_shards(folder: Path) -> list[tuple[str, Split]]:
    """The tar files in this folder and in the folders directly in it: names, relative to it, and splits, in order.

    Those of `list_left_out` are not among them.

    Raises:
        Failure: NO_INPUT if there are none, or only compressed ones.
    """
    try:
        archives = [path for pattern in ("*.tar", "*/*.tar") for path in folder.glob(pattern) if path.is_file()]
        apple_files = list_left_out(folder, APPLE)
        compressed = [] if archives else list_left_out(folder, COMPRESSED)
    except OSError as error:
        raise files.os_error_failure(error, folder, "read") from error
    names = sorted({path.relative_to(folder).as_posix() for path in archives}.difference(apple_files))
    if not names:
        what = f"no tar shards in {folder.absolute()}" if folder.is_dir() else f"there is no folder {folder.absolute()}"
        if compressed:
            fix = f"unpack them (gunzip, zstd -d): images in a compressed tar cannot be read alone ({compressed[0]})"
        else:
            fix = "set data.root to the folder that holds *.tar, or make shards: "
            fix += shell_command("train data pack SOURCE --output DIR")
        apple_file = f"{apple_files[0]}, which macOS writes beside a tar: it is none" if apple_files else None
        raise Failure(what, found=apple_file, fix=fix, code=ExitCode.NO_INPUT)
    splits = [_split_of(name) for name in names]
    if "validation" not in splits and "training" in splits:  # as of class folders
        splits = ["validation" if split == "test" else split for split in splits]
    return sorted(zip(names, splits, strict=True), key=lambda shard: (SPLITS.index(shard[1]), shard[0]))


def _words(name: str) -> set[str]:
    return {*re.split(r"[^a-z]+", name.lower())}


def unnamed_training_shards(shards: Sequence[Shard]) -> list[str]:
    """The training shards without a word for a split in their names, if others have that for training."""
    names = [shard.name for shard in shards if shard.split == "training"]
    unnamed = [name for name in names if not _words(name) & {*TRAINING_FOLDER_NAMES}]
    return unnamed if len(unnamed) < len(names) else []


def _split_of(name: str) -> Split:
    """By a word of its name, such as val in imagenet-val-0001.tar or val/0001.tar."""
    words = _words(name)
    if "test" in words:
        return "test"
    is_validation = words & {*VALIDATION_FOLDER_NAMES} and not words & {*TRAINING_FOLDER_NAMES}
    return "validation" if is_validation else "training"


def only_writer(folder: Path) -> AbstractContextManager[None]:
    """Let no other process pack or index shards in `folder` meanwhile. Raises Failure as `file_lock.only_writer`."""
    return file_lock.only_writer(folder / LOCK_NAME, fix="wait until it has ended, and start the same command again")


def write_index(
    folder: Path, processes: int | None = None, task: str = AUTO, say: Callable[[str], None] = lambda line: None
) -> ShardIndex:
    """Write the index of the shards in `folder`, as `read_shards`, unless another process writes there.

    Raises:
        Failure: as `read_shards`; OUTPUT for another writer.
    """
    list_shards(folder)
    for name in INDEX_FILES:
        files.refuse_unusable_file(folder / name, "index", Path(name).suffix)
    with only_writer(folder):
        index = read_shards(folder, processes, task, say)
        write_files(index)
    return index


def read_shards(
    folder: Path, processes: int | None = None, task: str = AUTO, say: Callable[[str], None] = lambda line: None
) -> ShardIndex:
    """Read every shard once, in several processes, and return the index without writing it.

    task: as data.task. say: takes lines of what is passed over, and of what looks like a mistake.

    Raises:
        Failure: NO_INPUT without shards; DATA for a damaged shard, for images without a label, for a group in two
            splits, and as `number_labels`.
    """
    listed = list_shards(folder)
    parts = list(map_in_processes(partial(_read_shard, folder), [name for name, _ in listed], processes))
    skipped: Skipped = {}
    for description, (count, example) in chain.from_iterable(part.skipped.items() for part in parts):
        before, first = skipped.get(description, (0, example))
        skipped[description] = before + count, first
    if skipped:
        say(f"passed over    {describe_skipped(skipped)}")
    written = sorted({label for part in parts for label in part.labels}, key=str)
    labels, values = number_labels(folder, written, task)
    of_label = dict(zip(written, values.tolist(), strict=True))
    for part in parts:
        part.entries["label"] = np.array([of_label[each] for each in part.labels], np.int64)[part.entries["label"]]
    entries = np.concatenate([part.entries for part in parts])
    if not any(len(part.entries) for (_, split), part in zip(listed, parts, strict=True) if split == "training"):
        raise Failure(
            "the shards hold no image to train on",
            found=f"{folder.absolute()}: {list_some([name for name, _ in listed])}"
            + (f"; passed over: {describe_skipped(skipped)}" if skipped else ""),
            expected="KEY.jpg with KEY.cls, in a shard whose path has no word such as val or test",
            fix=f"{shell_command('train data pack SOURCE --output DIR')} makes such shards",
            code=ExitCode.NO_INPUT,
        )
    shards = tuple(
        Shard(name=name, split=split, size=part.size, modified_ns=part.modified_ns, images=len(part.entries))
        for (name, split), part in zip(listed, parts, strict=True)
    )
    if empty := [shard.name for shard in shards if not shard.images]:
        say(f"warning: {len(empty):,} shards hold no image: {list_some(empty)}")
    for line in _label_warnings(labels, entries["label"]):
        say(f"warning: {line}")
    first_entries = np.cumsum([0, *(len(part.entries) for part in parts)])
    runs = [first + cut_into_runs(part.entries["offset"]) for first, part in zip(first_entries, parts, strict=False)]
    run_starts = np.concatenate([*runs, first_entries[-1:]])
    return ShardIndex(
        folder=folder,
        shards=shards,
        labels=labels,
        entries=entries,
        run_starts=run_starts,
        order=order_training_images(shards, entries, labels),
        groups=_number_groups(shards, [part.groups for part in parts]),
    )


def _label_warnings(labels: LabelKind, column: Int64Array) -> Iterator[str]:
    """What looks like a mistake in the labels of all images."""
    if not TASKS[labels.task].has_classes:
        return
    counts = np.bincount(column, minlength=len(labels.classes))
    if labels.sets is not None:
        counts = np.unpackbits(labels.sets, axis=1, count=len(labels.classes)).sum(axis=0)
    if len(empty := np.flatnonzero(counts == 0)):
        names = list_some(empty.tolist(), describe=labels.classes.__getitem__)
        first = " The first class has the number 0, so numbers from 1 on leave it empty." if counts[0] == 0 else ""
        yield f"{len(empty):,} of {len(counts):,} classes have no image: {names}.{first}"
    if labels.sets is None and len(column) >= MIN_IMAGES and 2 * (len(counts) - len(empty)) > len(column):
        yield f"{len(counts) - len(empty):,} classes for {len(column):,} images: are the labels captions, or numbers?"


def _number_groups(shards: Sequence[Shard], groups: Sequence[Sequence[str | None]]) -> Int64Array | None:
    """The group of each training image, int64 [n], in the order of the names; None if no image has a group.

    An image without a group is a group by itself.

    Raises:
        Failure: DATA for a group in two splits.
    """
    if not any(groups):
        return None
    names: dict[str, list[str]] = {split: [] for split in SPLITS}
    for shard, of_shard in zip(shards, groups, strict=True):
        by_itself = [f"{shard.name}:{row}" for row in range(shard.images)]
        names[shard.split] += [group or name for group, name in zip(of_shard or by_itself, by_itself, strict=True)]
    partition.refuse_leaks(names)
    return np.unique(names["training"], return_inverse=True)[1]


def split_training(index: ShardIndex, data: DataConfig) -> tuple[Int64Array, Int64Array, tuple[str, ...]]:
    """The training entries that data.val_fraction or data.fold, and data.test_fraction, take: sorted; and notes.

    Raises:
        Failure: DATA for groups that cannot be kept in one split.
    """
    count, has_validation = len(index.order), count_images(index.shards, "validation") > 0
    if index.groups is None:
        counts = batches.count_splits(count, data, has_validation=has_validation)
        validation, test = (np.sort(each.astype(np.int64)) for each in partition.split_order(index.order, data, counts))
        return validation, test, ()
    names = [f"{number:012d}" for number in index.groups.tolist()]  # in the order of the names
    strata = index.labels.strata(index.entries["label"][:count])
    parts = partition.partition_samples(strata, data, groups=names, has_validation=has_validation)
    return np.flatnonzero(parts.validation), np.flatnonzero(parts.test), parts.notes


def order_training_images(
    shards: Sequence[Shard], entries: Entries, labels: LabelKind
) -> npt.NDArray[np.uint32 | np.int64]:
    """The order of `ShardIndex`."""
    count = count_images(shards, "training")
    order = partition.order_by_share(labels.strata(entries["label"][:count]))
    return order.astype(np.uint32) if count <= MAX_UINT32 else order


def write_files(index: ShardIndex) -> None:
    """Write all files of an index, and remove what a killed writer left. Raises Failure: IO, OUTPUT."""
    for left in file_writer.left_files(index.folder, INDEX_FILES):
        files.remove(left)
    arrays = (index.entries, index.run_starts, index.order, index.labels.sets, index.groups)
    for path, array in zip(map(index.folder.joinpath, ARRAY_FILES), arrays, strict=True):
        if array is not None:
            with files.translate_os_errors(path), file_writer.replace_file(path) as stream:
                np.save(stream, array)
    facts = {
        "version": VERSION,
        "groups": 0 if index.groups is None else int(index.groups.max()) + 1,
        "task": index.labels.task,
        "classes": index.labels.classes,
        "shards": [asdict(shard) for shard in index.shards],
    }
    files.write_json(index.folder / FACTS_FILE, facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadShard:
    """labels: each once, as they are written; the entries have their numbers in this list.

    groups: of each image; empty if none has one.
    """

    size: int
    modified_ns: int
    entries: Entries
    labels: list[Label]
    groups: list[str | None]
    skipped: Skipped


def _read_shard(folder: Path, name: str) -> _ReadShard:
    """Raises Failure: DATA, NO_INPUT or IO."""
    path, skipped, labels = folder / name, Skipped(), dict[Label, int]()
    with files.translate_os_errors(path, "read"), open(path, "rb", buffering=READ_BYTES) as file:
        status = os.fstat(file.fileno())
        images = read_images(path, file, status.st_size, skipped)
    groups = [group for *_, group in images]
    rows = [(*position, labels.setdefault(label, len(labels))) for *position, label, _ in images]
    return _ReadShard(
        size=status.st_size,
        modified_ns=status.st_mtime_ns,
        entries=np.array(rows, ENTRY),
        labels=[*labels],
        groups=groups if any(groups) else [],
        skipped=skipped,
    )


def _index_failure(folder: Path, reason: str) -> Failure:
    return Failure(
        "the index does not fit the shards",
        found=reason,
        fix=f"if the shards are right, index them again: {shell_command('train data index', folder)}",
        code=ExitCode.DATA,
    )
