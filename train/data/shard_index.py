"""The index of a folder of tar shards: where each image lies, its label and its crc32.

Files beside the shards: index.npy has an entry of 24 bytes for each image, runs.npy the first entry of each run of
about 1 MiB, and order.npy the order from which validation and test images are taken, 4 bytes for each image. They are
mapped into memory. index.json names shards and classes. `train data index` writes all in one pass over the shards. This
module does not import torch.
"""

from __future__ import annotations

import os
import re
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal

import numpy as np
import numpy.typing as npt

from entrypoint import ExitCode, Failure, file_writer
from train import file_lock, files
from train.data import partition
from train.data.class_folders import IMAGE_SUFFIXES, TRAINING_FOLDER_NAMES, VALIDATION_FOLDER_NAMES
from train.data.process_pool import map_in_processes
from train.data.shard_labels import LABEL_SUFFIXES, Label, LabelKind, number_labels, parse_label
from train.data.shard_runs import Entries, Int64Array, cut_into_runs
from train.tasks import AUTO, MULTI_LABEL

ENTRIES_FILE: Final = "index.npy"
RUNS_FILE: Final = "runs.npy"
ORDER_FILE: Final = "order.npy"
SETS_FILE: Final = "label_sets.npy"  # only of several labels per image
FACTS_FILE: Final = "index.json"
ARRAY_FILES: Final = (ENTRIES_FILE, RUNS_FILE, ORDER_FILE)
INDEX_FILES: Final = (*ARRAY_FILES, SETS_FILE, FACTS_FILE)
LOCK_NAME: Final = ".writer"  # of whoever packs or indexes
VERSION: Final = 2
ENTRY: Final = np.dtype([("offset", "<u8"), ("length", "<u4"), ("crc32", "<u4"), ("label", "<i8")])
MAX_UINT32: Final = 2**32 - 1
READ_BYTES: Final = 4 * 2**20
BLOCK: Final = tarfile.BLOCKSIZE
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
    images to train on, as `partition.order_by_share`, uint32 or int64 [n]. They are mapped.
    """

    folder: Path
    shards: tuple[Shard, ...]
    labels: LabelKind
    entries: Entries
    run_starts: Int64Array
    order: npt.NDArray[np.uint32 | np.int64]

    def bounds(self, split: Split) -> tuple[int, int]:
        """The first entry of a split, and the end."""
        before = sum(count_images(self.shards, other) for other in SPLITS[: SPLITS.index(split)])
        return before, before + count_images(self.shards, split)


def count_images(shards: Sequence[Shard], split: Split) -> int:
    """The images of a split."""
    return sum(shard.images for shard in shards if shard.split == split)


def read_facts(folder: Path) -> tuple[tuple[Shard, ...], LabelKind]:
    """The shards, which `refuse_other_shards` compares with the files, and what the labels are; the sets are not read.

    Raises:
        Failure: NO_INPUT without an index; DATA for a damaged one.
    """
    try:
        facts = files.read_json(folder / FACTS_FILE)
        if facts["version"] != VERSION:
            raise ValueError(f"it has version {facts['version']}, not {VERSION}")
        shards = tuple(Shard(**shard) for shard in facts["shards"])
        labels = LabelKind(task=facts["task"], classes=tuple(map(str, facts["classes"])))
    except FileNotFoundError:
        raise _missing_index_failure(folder) from None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _index_failure(folder, f"{folder / FACTS_FILE}: {error}") from error
    return shards, labels


def refuse_other_shards(folder: Path, shards: Sequence[Shard]) -> None:
    """Compare the shards of an index with the files: sizes, and times of the last change.

    Raises:
        Failure: NO_INPUT for a missing shard; DATA for others than those that were indexed.
    """
    for shard in shards:
        _refuse_other_shard(folder, shard)
    names = {shard.name for shard in shards}
    if others := sorted(name for name, _ in list_shards(folder) if name not in names):
        raise _index_failure(folder, f"{len(others)} shards are not in the index: {', '.join(others[:3])}")


def read_index(folder: Path) -> ShardIndex:
    """Map the index. Raises Failure: as `read_facts`."""
    shards, labels = read_facts(folder)
    if labels.task == MULTI_LABEL:
        labels = replace(labels, sets=_map_array(folder, SETS_FILE))
    entries, run_starts, order = (_map_array(folder, name) for name in ARRAY_FILES)
    count, training = sum(shard.images for shard in shards), count_images(shards, "training")
    if entries.dtype != ENTRY or (len(entries), run_starts[-1], len(order)) != (count, count, training):
        raise _index_failure(folder, f"{', '.join(ARRAY_FILES)} and {FACTS_FILE} do not belong together")
    return ShardIndex(folder=folder, shards=shards, labels=labels, entries=entries, run_starts=run_starts, order=order)


def _map_array(folder: Path, name: str) -> npt.NDArray[Any]:
    try:
        # Copy on write: torch asks for memory that may be written, and nothing is written.
        array: npt.NDArray[Any] = np.load(folder / name, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise _index_failure(folder, f"{folder / name}: {error}") from error
    return array.view(np.ndarray)


def list_shards(folder: Path) -> list[tuple[str, Split]]:
    """The tar files in this folder and in the folders directly in it: names, relative to it, and splits, in order.

    Raises:
        Failure: NO_INPUT if there are none, or only compressed ones.
    """
    try:
        archives = [path for pattern in ("*.tar", "*/*.tar") for path in folder.glob(pattern) if path.is_file()]
        compressed = [path.name for pattern in ("*.tar.*", "*/*.tar.*", "*.tgz") for path in folder.glob(pattern)]
    except OSError as error:
        raise files.os_error_failure(error, folder, "read") from error
    if not archives:
        what = f"no tar shards in {folder.absolute()}" if folder.is_dir() else f"there is no folder {folder.absolute()}"
        if compressed:
            fix = f"unpack them (gunzip, zstd -d): images in a compressed tar cannot be read alone ({compressed[0]})"
        else:
            fix = "set data.root to the folder that holds *.tar, or make shards: train data pack SOURCE --output DIR"
        raise Failure(what, fix=fix, code=ExitCode.NO_INPUT)
    names = sorted(path.relative_to(folder).as_posix() for path in archives)
    splits = [_split_of(name) for name in names]
    if "validation" not in splits and "training" in splits:  # as of class folders
        splits = ["validation" if split == "test" else split for split in splits]
    return sorted(zip(names, splits, strict=True), key=lambda shard: (SPLITS.index(shard[1]), shard[0]))


def _split_of(name: str) -> Split:
    """By a word of its name, such as val in imagenet-val-0001.tar or val/0001.tar."""
    words = re.split(r"[^a-z]+", name.lower())
    if "test" in words:
        return "test"
    is_validation = set(words) & {*VALIDATION_FOLDER_NAMES} and not set(words) & {*TRAINING_FOLDER_NAMES}
    return "validation" if is_validation else "training"


def only_writer(folder: Path) -> AbstractContextManager[None]:
    """Let no other process pack or index shards in `folder` meanwhile. Raises Failure as `file_lock.only_writer`."""
    return file_lock.only_writer(folder / LOCK_NAME, fix="wait until it has ended, and start the same command again")


def write_index(folder: Path, processes: int | None = None, task: str = AUTO) -> ShardIndex:
    """Write the index of the shards in `folder`, as `index_shards`, unless another process writes there.

    Raises:
        Failure: as `index_shards`; OUTPUT for another writer.
    """
    list_shards(folder)
    for name in INDEX_FILES:
        files.refuse_unusable_file(folder / name, "index", Path(name).suffix)
    with only_writer(folder):
        return index_shards(folder, processes, task)


def index_shards(folder: Path, processes: int | None = None, task: str = AUTO) -> ShardIndex:
    """Read all shards once, one behind the other in each of so many processes, and write their index.

    Only inside `only_writer`. task: as data.task.

    Raises:
        Failure: NO_INPUT without shards; DATA for a damaged shard, for images without a label, and as `number_labels`;
            what writing raises.
    """
    listed = list_shards(folder)
    parts = list(map_in_processes(partial(_read_shard, folder), [name for name, _ in listed], processes))
    written = sorted({label for part in parts for label in part.labels}, key=str)
    labels, values = number_labels(folder, written, task)
    of_label = dict(zip(written, values.tolist(), strict=True))
    for part in parts:
        part.entries["label"] = np.array([of_label[each] for each in part.labels], np.int64)[part.entries["label"]]
    entries = np.concatenate([part.entries for part in parts])
    if not any(len(part.entries) for (_, split), part in zip(listed, parts, strict=True) if split == "training"):
        raise Failure(
            "the shards hold no image to train on",
            found=f"{folder.absolute()}: {', '.join(name for name, _ in listed[:3])}",
            expected="KEY.jpg with KEY.cls, in a shard whose path has no word such as val or test",
            fix="train data pack SOURCE --output DIR makes such shards",
            code=ExitCode.NO_INPUT,
        )
    shards = tuple(
        Shard(name=name, split=split, size=part.size, modified_ns=part.modified_ns, images=len(part.entries))
        for (name, split), part in zip(listed, parts, strict=True)
    )
    first_entries = np.cumsum([0, *(len(part.entries) for part in parts)])
    runs = [first + cut_into_runs(part.entries["offset"]) for first, part in zip(first_entries, parts, strict=False)]
    run_starts = np.concatenate([*runs, first_entries[-1:]])
    index = ShardIndex(
        folder=folder,
        shards=shards,
        labels=labels,
        entries=entries,
        run_starts=run_starts,
        order=order_training_images(shards, entries, labels),
    )
    write_files(index)
    return index


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
    for name, array in zip(ARRAY_FILES, (index.entries, index.run_starts, index.order), strict=True):
        _write_array(index.folder / name, array)
    if index.labels.sets is not None:
        _write_array(index.folder / SETS_FILE, index.labels.sets)
    facts = {
        "version": VERSION,
        "task": index.labels.task,
        "classes": index.labels.classes,
        "shards": [asdict(shard) for shard in index.shards],
    }
    files.write_json(index.folder / FACTS_FILE, facts)


def _write_array(path: Path, array: npt.NDArray[Any]) -> None:
    with files.translate_os_errors(path), file_writer.replace_file(path) as stream:
        np.save(stream, array)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadShard:
    """labels: each once, as they are written; the entries have their numbers in this list."""

    size: int
    modified_ns: int
    entries: Entries
    labels: list[Label]


def _read_shard(folder: Path, name: str) -> _ReadShard:
    """Raises Failure: DATA, NO_INPUT or IO."""
    path = folder / name
    with files.translate_os_errors(path, "read"), open(path, "rb", buffering=READ_BYTES) as file:
        status = os.fstat(file.fileno())
        rows, labels = [], dict[Label, int]()
        for key, image, label in _samples(path, file, status.st_size):
            if label is None:
                raise Failure(
                    f"an image in {path} has no label",
                    found=key,
                    expected=f"beside {key}.jpg one of {', '.join(key + suffix for suffix in LABEL_SUFFIXES)}",
                    fix="write a number or a class name into it, and make the shard again",
                    code=ExitCode.DATA,
                )
            label_number = labels.setdefault(label, len(labels))
            rows.append((image.offset_data, image.size, _checksum(file, image), label_number))
    return _ReadShard(
        size=status.st_size, modified_ns=status.st_mtime_ns, entries=np.array(rows, ENTRY), labels=[*labels]
    )


def _samples(path: Path, file: BinaryIO, size: int) -> Iterator[tuple[str, tarfile.TarInfo, Label | None]]:
    """Key, image and label of each sample: the members with one key follow each other.

    The key is the name up to the first dot behind the last slash.
    """
    current, image, texts = "", None, dict[str, str]()
    for member in _members(path, file, size):
        above, _, base = member.name.rpartition("/")
        stem, dot, suffix = base.partition(".")
        key, suffix = (f"{above}/{stem}" if above else stem), (dot + suffix).lower()
        if key != current:
            if image is not None:
                yield current, image, parse_label(texts)
            current, image, texts = key, None, {}
        if image is None and suffix.endswith(IMAGE_SUFFIXES):
            image = member
        elif suffix in LABEL_SUFFIXES:
            file.seek(member.offset_data)
            texts[suffix] = file.read(member.size).decode(errors="replace")
    if image is not None:
        yield current, image, parse_label(texts)


def _members(path: Path, file: BinaryIO, size: int) -> Iterator[tarfile.TarInfo]:
    """The regular files of an archive that is whole: its end is marked by a block of zeros."""
    end = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                end = member.offset_data + -(-member.size // BLOCK) * BLOCK if member.isreg() else member.offset + BLOCK
                if end > size:
                    break
                if member.isreg() and not os.path.basename(member.name).startswith("."):
                    yield member
                archive.members = []  # type: ignore[attr-defined]  # or it keeps all of them
    except tarfile.TarError as error:
        raise _damaged_shard_failure(path, str(error)) from error
    file.seek(end)
    if end > size or file.read(BLOCK) != bytes(BLOCK):
        raise _damaged_shard_failure(path, f"it ends after {size:,} bytes, in the middle")


def _checksum(file: BinaryIO, member: tarfile.TarInfo) -> int:
    file.seek(member.offset_data)
    return zlib.crc32(file.read(member.size))


def _refuse_other_shard(folder: Path, shard: Shard) -> None:
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
    if status.st_size != shard.size or status.st_mtime_ns != shard.modified_ns:
        changed = "size" if status.st_size != shard.size else "time of its last change"
        raise _index_failure(folder, f"{path} has another {changed} than when it was indexed")


def _missing_index_failure(folder: Path) -> Failure:
    list_shards(folder)  # without shards an index is no help
    return Failure(
        "these shards have no index yet",
        found=f"no {FACTS_FILE} in {folder.absolute()}",
        fix=f"train data index {folder}",
        code=ExitCode.NO_INPUT,
    )


def _index_failure(folder: Path, reason: str) -> Failure:
    return Failure(
        "the index does not fit the shards",
        found=reason,
        fix=f"if the shards are right, index them again: train data index {folder}",
        code=ExitCode.DATA,
    )


def _damaged_shard_failure(path: Path, reason: str) -> Failure:
    return Failure(
        "a shard is damaged",
        found=f"{path}: {reason}",
        fix="copy it again, or make it again",
        code=ExitCode.DATA,
    )
