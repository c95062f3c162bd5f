"""Keeps the decoded pixels of image files in one memory-mapped file in `data.cache`.

One process decodes the files once, and all processes on all nodes read them. The file is written
completely or not at all, and has a checksum for each image.
"""

from __future__ import annotations

import errno
import hashlib
import math
import os
import pwd
import shutil
import sys
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entrypoint import ExitCode, Failure, Heartbeat, file_writer, num_usable_cores, print_message
from train import file_lock, files
from train.config.schema import DataConfig
from train.data import decode, image_lists, registry
from train.data.splits import DataSplits, ImageFileSource, SampleIndices, SampleSource
from train.distributed.shared_memory import HostRanks
from train.files import translate_os_errors

CACHE_VERSION: Final = 3  # raised whenever the same file would decode to other pixels
METADATA_BYTES_PER_IMAGE: Final = 5  # a checksum (4 bytes), and whether the image is readable (1 byte)

StoredShape = tuple[int, int, int]  # height, width and channels of one image
UInt8Array = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedCache:
    """The decoded images of a data set, in a mapped file.

    pixels: uint8 [N, *stored]. sums: checksum of each image, uint32 [N]. readable: which could be decoded, bool [N].
    """

    path: Path
    pixels: UInt8Array
    sums: npt.NDArray[np.uint32]
    readable: BoolArray

    def read(self, rows: npt.NDArray[np.int64]) -> tuple[UInt8Array, BoolArray, bool]:
        """A copy of these images, which of them are usable, and whether one is damaged (another checksum)."""
        taken, readable = self.pixels[rows], self.readable[rows]
        sums = np.fromiter((zlib.crc32(image) for image in taken), np.uint32, len(rows))
        same = sums == self.sums[rows]
        return taken, readable & same, bool((readable & ~same).any())

    def give_up(self) -> bool:
        """Remove the manifest, so that the next start decodes again. Whether this process removed it."""
        try:
            _manifest_path(self.path).unlink()
        except OSError:
            return False
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheWriter:
    """Writes the images in any order, from several threads. sums, readable: as in `DecodedCache`."""

    handle: int
    sums: npt.NDArray[np.uint32]
    readable: BoolArray

    def put(self, rows: npt.NDArray[np.int64], pixels: UInt8Array, readable: BoolArray) -> None:
        """Write the images of consecutive rows. Raises OSError."""
        self.sums[rows], self.readable[rows] = [zlib.crc32(image) for image in pixels], readable
        _write_at(self.handle, pixels, int(rows[0]) * pixels[0].nbytes)


def open_cache(path: Path, count: int, stored: StoredShape) -> DecodedCache | None:
    """Open the cache; None if the file is missing, has an unexpected size, or was given up.

    Raises:
        Failure: OUTPUT if this user may not read it. Decoding again would only replace the other users' cache.
    """
    try:
        if files.read_json(_manifest_path(path)) != _manifest_content(count, stored) or os.path.getsize(
            path
        ) != cache_file_bytes(count, stored):
            return None
        mapped = np.asarray(np.memmap(path, np.uint8, "r"))
    except PermissionError as error:
        raise _no_permission_failure(Path(error.filename)) from error
    except (OSError, ValueError):
        return None
    end = count * math.prod(stored)
    return DecodedCache(
        path=path,
        pixels=mapped[:end].reshape(count, *stored),
        sums=np.frombuffer(mapped[end : end + 4 * count].tobytes(), np.uint32),
        readable=mapped[end + 4 * count :] == 1,
    )


@contextmanager
def write_cache(path: Path, count: int, stored: StoredShape) -> Iterator[CacheWriter]:
    """Write a new file, which replaces the one at `path` if the block ends without an error.

    Raises:
        OSError: from the system; ENOSPC before anything is written if there is too little space.
        Failure: as `files.write_atomic`.
    """
    need = cache_file_bytes(count, stored)
    if shutil.disk_usage(path.parent).free < need:
        raise OSError(errno.ENOSPC, f"{need / 1e6:.1f} MB are needed")
    for partial in _partial_files(path):  # of a killed process
        files.remove(partial)
    with file_writer.replace_file(path) as stream:
        sums, readable, end = np.zeros(count, np.uint32), np.zeros(count, bool), count * math.prod(stored)
        yield CacheWriter(handle=stream.fileno(), sums=sums, readable=readable)
        _write_at(stream.fileno(), sums, end)
        _write_at(stream.fileno(), readable, end + sums.nbytes)
    files.write_json(_manifest_path(path), _manifest_content(count, stored))


def refuse_unreadable_cache(path: Path) -> None:
    """Check before the wait that this user may read the file that another process is writing.

    Raises:
        Failure: OUTPUT if not.
    """
    for file in _partial_files(path):
        with suppress(OSError):  # gone by now
            try:
                os.close(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
            except PermissionError as error:
                raise _no_permission_failure(file) from error


def _partial_files(path: Path) -> Iterator[Path]:
    return path.parent.glob(f"{file_writer.TEMPORARY_PREFIX}{path.stem}.*")


def _no_permission_failure(file: Path) -> Failure:
    user, folder = _owner_name(file), file.parent
    return Failure(
        f"data.cache is {user}'s, and cannot be read",
        found=f"{file}, as {_user_name(os.geteuid())}",
        fix=f"let {user} run `chmod -R g+rX {folder}` (and fill it under umask 027), or set data.cache "
        "to another folder",
        code=ExitCode.OUTPUT,
    )


def _owner_name(file: Path) -> str:
    """The owner of the file, or of the first folder above it that may be examined."""
    for path in (file, *file.parents):
        with suppress(OSError):
            return _user_name(path.stat().st_uid)
    return "another user"


def _user_name(user: int) -> str:
    """The user's name, or its number: containers often have no user names."""
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return f"uid {user}"


def cache_file_bytes(count: int, stored: StoredShape) -> int:
    """The size of the whole file."""
    return count * (math.prod(stored) + METADATA_BYTES_PER_IMAGE)


def _manifest_content(count: int, stored: StoredShape) -> dict[str, Any]:
    return {"version": CACHE_VERSION, "images": count, "stored": [*stored]}


def _manifest_path(path: Path) -> Path:
    return path.with_suffix(".json")


def _write_at(handle: int, array: npt.NDArray[Any], offset: int) -> None:
    rest = np.ascontiguousarray(array).data.cast("B")
    while rest:
        written = os.pwrite(handle, rest, offset)
        rest, offset = rest[written:], offset + written


IMAGES_PER_CHUNK: Final = 128  # decoded by one thread between two heartbeats
FILES_PER_CHUNK: Final = 1000  # stat calls of one thread between two heartbeats
STAT_THREADS: Final = 16  # a file server answers many requests at once


@dataclass(frozen=True, slots=True)
class CachedSource(SampleSource):
    """Image files whose pixels are in a cache. rows: int64 [count], their rows in the cache."""

    files: ImageFileSource
    rows: npt.NDArray[np.int64]
    cache: DecodedCache

    @property
    def labels(self) -> Tensor:
        """int64 [count]."""
        return self.files.labels

    @property
    def file_names(self) -> Sequence[str]:
        return self.files.paths

    def read(self, samples: SampleIndices) -> Tensor:
        """uint8 [n, *stored]. An image that is missing or damaged in the cache is decoded from its file.

        Raises:
            Failure: as `ImageFileSource.read`.
        """
        pixels, readable, damaged = self.cache.read(self.rows[samples])
        if damaged and self.cache.give_up():
            print_message(
                f"{self.cache.path} is damaged: read from the files; the next start decodes them again", sys.stderr
            )
        for index in np.flatnonzero(~readable):
            pixels[index] = self.files.read(samples[index : index + 1])[0].numpy()
        return torch.from_numpy(pixels)


def use_cache(splits: DataSplits, data: DataConfig, host: HostRanks, pulse: Heartbeat) -> DataSplits:
    """Fill data.cache, and return the same samples read from it. All ranks must call this.

    Raises:
        Failure: USAGE for a cache inside data.root; OUTPUT, IO or SECURITY for its folder, also if another user's
            cache is not readable; the failures of reading the files, except for broken images.
    """
    if data.cache is None:
        return splits
    training, validation = splits.training.image_files(), splits.validation.image_files()
    if training is None or validation is None:
        return replace(
            splits, notes=(*splits.notes, "data.cache does nothing here: only image files are decoded into it")
        )
    registry.refuse_unusable_cache(data, writes=False)
    files, rows = combine_files(training, validation)
    name = host.first(lambda: cache_key(files, data, pulse))
    cache = _open_or_fill(Path(data.cache) / f"{name}.pixels", files, pulse)
    count = len(training.labels)
    return replace(
        splits,
        training=CachedSource(training, rows[:count], cache),
        validation=CachedSource(validation, rows[count:], cache),
        notes=(*splits.notes, f"data.cache: {cache.path}"),
    )


def combine_files(training: ImageFileSource, validation: ImageFileSource) -> tuple[ImageFileSource, SampleIndices]:
    """All files of both splits, sorted, each once; and the rows of training, then of validation, int64 [count].

    The order does not depend on the split. Labels are not set.
    """
    every, rows = image_lists.merge_paths(
        image_lists.as_packed_paths(training.paths), image_lists.as_packed_paths(validation.paths)
    )
    return replace(training, paths=every, labels=torch.zeros(len(every), dtype=torch.int64)), rows


def cache_key(files: ImageFileSource, data: DataConfig, pulse: Heartbeat) -> str:
    """A name that changes with the files, their sizes and modification times, how they are cut and scaled, and
    CACHE_VERSION.

    It does not change if the folder is moved, for example to the disk of another node.

    Raises:
        Failure: NO_INPUT or IO for a file that is gone.
    """
    how, is_exact = files.preprocessing, files.preprocessing.decode == "exact"  # all others decode whole images alike
    scaling = how.crop_ratio, how.interpolation, how.fit, decode.fill_color(how, len("RGB")), is_exact
    digest = hashlib.sha256(f"{CACHE_VERSION} {files.stored} {scaling}\n".encode())
    is_table = os.path.isfile(data.root)
    above = os.path.abspath(data.images or os.path.dirname(data.root)) if is_table else data.root
    chunks = np.array_split(np.arange(len(files.paths)), -(-len(files.paths) // FILES_PER_CHUNK))
    with ThreadPoolExecutor(STAT_THREADS) as pool:
        for lines in pulse.each("data", pool.map(lambda chunk: _stat_files(files, chunk, above), chunks)):
            digest.update(lines)
    return digest.hexdigest()[:32]


def _stat_files(files: ImageFileSource, chunk: SampleIndices, root: str) -> bytes:
    lines, above = [], str(Path(root))
    for sample in chunk:
        path = str(files.paths[sample])
        try:
            status = os.stat(path)
        except OSError as error:
            raise decode.unreadable_image_failure(Path(path), int(sample), error) from error
        lines.append(f"{path.removeprefix(above)}\0{status.st_size}\0{status.st_mtime_ns}\n")
    return "".join(lines).encode(errors="surrogateescape")


def _open_or_fill(path: Path, files: ImageFileSource, pulse: Heartbeat) -> DecodedCache:
    """The complete cache. One of all processes on all nodes fills it, and the others wait."""
    lock_path, waited = path.with_suffix(".lease"), None
    while (cache := open_cache(path, len(files.paths), files.stored)) is None:
        with translate_os_errors(path, fixes=registry.CACHE_FIXES):
            path.parent.mkdir(parents=True, exist_ok=True)
            held = file_lock.acquire_lock(lock_path, waited)
        if held is None:
            waited = file_lock.wait_for_release(
                lock_path, lambda _: None, beat=lambda _: _check_while_waiting(path, pulse)
            )
            continue
        with held.held():
            if open_cache(path, len(files.paths), files.stored) is not None:
                continue  # filled while this process acquired the lock
            try:
                _fill_cache(path, files, pulse)
            except Failure:  # which does not matter if another process took over the expired lock, and has filled it
                if open_cache(path, len(files.paths), files.stored) is None:
                    raise
    return cache


def _check_while_waiting(path: Path, pulse: Heartbeat) -> None:
    """Called while the holder lives: partial files of a dead holder are not examined."""
    refuse_unreadable_cache(path)
    pulse.beat("data")


def _fill_cache(path: Path, files: ImageFileSource, pulse: Heartbeat) -> None:
    """Under the lock: decode all files on all cores of this process, because the other ranks wait for it."""
    count = len(files.paths)
    chunks = np.array_split(np.arange(count), -(-count // IMAGES_PER_CHUNK))
    cores = num_usable_cores()
    with (
        translate_os_errors(path, fixes=registry.CACHE_FIXES),
        write_cache(path, count, files.stored) as writer,
        ThreadPoolExecutor(cores) as pool,
    ):
        results = pool.map(lambda chunk: writer.put(chunk, *_decode_chunk(files, chunk)), chunks)
        try:
            for _ in pulse.each("data", results):
                pass
        finally:
            results.close()  # type: ignore[attr-defined]  # a generator: chunks that have not begun are cancelled


def _decode_chunk(files: ImageFileSource, chunk: SampleIndices) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """The images, and which of them are readable. Whoever reads a broken one reports it, as without a cache."""
    pixels = np.zeros((len(chunk), *files.stored), np.uint8)
    readable = np.ones(len(chunk), bool)
    for index in range(len(chunk)):
        try:
            pixels[index] = files.read(chunk[index : index + 1])[0].numpy()
        except Failure as failure:
            if failure.code != ExitCode.DATA:
                raise
            readable[index] = False
    return pixels, readable
