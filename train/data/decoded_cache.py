"""Keeps the decoded pixels of image files in one memory-mapped file in `data.cache`.

One process decodes the files once, and all processes on all nodes read them. The file is written
completely or not at all, and has a checksum for each image.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pwd
import sys
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entrypoint import ExitCode, Failure, Heartbeat, num_usable_cores
from train import file_lock, files
from train.config.schema import DataConfig
from train.data import decode, path_list
from train.data.image_folder import ImageFileSource
from train.data.splits import DataSplits, SampleIndices
from train.distributed.shared_memory import HostRanks
from train.files import os_error_failure

CACHE_VERSION: Final = 2  # raised whenever the same file would be decoded to other pixels
RGB_CHANNELS: Final = 3
METADATA_BYTES_PER_IMAGE: Final = 5  # bytes beside each image: its checksum, and whether there is one

UInt8Array = npt.NDArray[np.uint8]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedCache:
    """pixels: uint8 [N, size, size, 3], mapped. sums: of each image, uint32 [N]. whole: which are there, bool [N]."""

    path: Path
    pixels: UInt8Array
    sums: npt.NDArray[np.uint32]
    whole: BoolArray

    def take(self, rows: npt.NDArray[np.int64]) -> tuple[UInt8Array, BoolArray, bool]:
        """A copy of these images, which of them can be used, and whether one is not what was written."""
        taken, whole = self.pixels[rows], self.whole[rows]
        sums = np.fromiter((zlib.crc32(image) for image in taken), np.uint32, len(rows))
        same = sums == self.sums[rows]
        return taken, whole & same, bool((whole & ~same).any())

    def give_up(self) -> bool:
        """Let the next start make it anew. Whether this process was the first to say so."""
        try:
            _manifest_path(self.path).unlink()
        except OSError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class CacheWriter:
    """Takes the images in any order, from several threads."""

    handle: int
    count: int
    size: int
    sums: npt.NDArray[np.uint32] = field(init=False)
    whole: BoolArray = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sums", np.zeros(self.count, np.uint32))
        object.__setattr__(self, "whole", np.zeros(self.count, bool))

    def put(self, rows: npt.NDArray[np.int64], pixels: UInt8Array, whole: BoolArray) -> None:
        """Images of rows that follow each other. Raises OSError."""
        self.sums[rows], self.whole[rows] = [zlib.crc32(image) for image in pixels], whole
        _write_at(self.handle, pixels, int(rows[0]) * pixels[0].nbytes)

    def finish(self) -> None:
        """Checksums and marks behind the images, and all of it on the disk. Raises OSError."""
        end = self.count * _bytes_per_image(self.size)
        _write_at(self.handle, self.sums, end)
        _write_at(self.handle, self.whole, end + self.sums.nbytes)
        os.fsync(self.handle)


def open_cache(path: Path, count: int, size: int) -> DecodedCache | None:
    """The images, or None where the file is missing, of another size than it should be, or was given up.

    Raises:
        Failure: OUTPUT where it is there, for other users: to decode all of it again would only replace theirs.
    """
    try:
        if json.loads(_manifest_path(path).read_bytes()) != _manifest_content(count, size) or os.path.getsize(
            path
        ) != cache_file_bytes(count, size):
            return None
        mapped = np.asarray(np.memmap(path, np.uint8, "r"))
    except PermissionError as error:
        raise _no_permission_failure(Path(error.filename)) from error
    except (OSError, ValueError):
        return None
    end = count * _bytes_per_image(size)
    return DecodedCache(
        path=path,
        pixels=mapped[:end].reshape(count, size, size, RGB_CHANNELS),
        sums=np.frombuffer(mapped[end : end + 4 * count].tobytes(), np.uint32),
        whole=mapped[end + 4 * count :] == 1,
    )


@contextmanager
def write_cache(path: Path, count: int, size: int) -> Iterator[CacheWriter]:
    """A new file, which replaces the one at `path` once the block has ended without an error.

    Raises:
        OSError: as the system says it; ENOSPC before anything is written where there is too little room.
        Failure: as `files.write_atomic`.
    """
    need, free = cache_file_bytes(count, size), _free_bytes(path.parent)
    if free < need:
        raise OSError(errno.ENOSPC, f"{need / 1e6:.1f} MB are needed")
    temporary = path.with_name(f"{files.TEMPORARY_PREFIX}{path.name}-{os.urandom(4).hex()}")
    for left in _partial_files(path):  # of one that was killed
        files.remove(left)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        writer = CacheWriter(handle, count, size)
        yield writer
        writer.finish()
        files.retry_transient_errors(lambda: os.rename(temporary, path))
        files.write_json(_manifest_path(path), _manifest_content(count, size))
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    finally:
        os.close(handle)


def refuse_unreadable_cache(path: Path) -> None:
    """Whether this user will be able to read what another process is writing, asked before it is waited for.

    Raises:
        Failure: OUTPUT.
    """
    for file in _partial_files(path):
        with suppress(OSError):  # gone meanwhile
            try:
                os.close(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
            except PermissionError as error:
                raise _no_permission_failure(file) from error


def _partial_files(path: Path) -> Iterator[Path]:
    return path.parent.glob(f"{files.TEMPORARY_PREFIX}{path.stem}.*")


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
    """Of the file, or, where a folder above it is shut, of that one."""
    for place in (file, *file.parents):
        with suppress(OSError):
            return _user_name(place.stat().st_uid)
    return "another user"


def _user_name(user: int) -> str:
    """Containers often know no names of users."""
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return f"uid {user}"


def cache_file_bytes(count: int, size: int) -> int:
    """Of the whole file."""
    return count * (_bytes_per_image(size) + METADATA_BYTES_PER_IMAGE)


def _bytes_per_image(size: int) -> int:
    return size * size * RGB_CHANNELS


def _free_bytes(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def _manifest_content(count: int, size: int) -> dict[str, Any]:
    return {"version": CACHE_VERSION, "images": count, "image_size": size}


def _manifest_path(path: Path) -> Path:
    return path.with_suffix(".json")


def _write_at(handle: int, array: npt.NDArray[Any], place: int) -> None:
    rest = np.ascontiguousarray(array).data.cast("B")
    while rest:
        written = os.pwrite(handle, rest, place)
        rest, place = rest[written:], place + written


IMAGES_PER_CHUNK: Final = 128  # images decoded by one thread at a time, which then gives a sign of life
FILES_PER_CHUNK: Final = 1000  # files by one thread at a time
STAT_THREADS: Final = 16  # threads: a file server answers many at once
FIXES_BY_CODE: Final = {
    ExitCode.OUTPUT: "set data.cache to a folder that you may write (in a container: mount one), or leave it out",
    ExitCode.IO: "free space there, set data.cache to another file system, or leave it out",
    ExitCode.SECURITY: "remove the symbolic link, or set data.cache to the place it points to",
}


@dataclass(frozen=True, slots=True)
class CachedSource:
    """Image files of which the pixels are in a cache. rows: int64 [count], where in the cache."""

    files: ImageFileSource
    rows: npt.NDArray[np.int64]
    stock: DecodedCache

    @property
    def labels(self) -> Tensor:
        """int64 [count]."""
        return self.files.labels

    @property
    def paths(self) -> Sequence[str]:
        """Of the files."""
        return self.files.paths

    def read(self, samples: SampleIndices) -> Tensor:
        """uint8 [n, size, size, 3]. What is not in the cache, or was damaged there, is decoded from its file.

        Raises:
            Failure: as `Files.read`.
        """
        pixels, fine, damaged = self.stock.take(self.rows[samples])
        if damaged and self.stock.give_up():
            sys.stderr.write(f"{self.stock.path} is damaged: read from the files; the next start decodes them anew\n")
        for place in np.flatnonzero(~fine):
            pixels[place] = self.files.read(samples[place : place + 1])[0].numpy()
        return torch.from_numpy(pixels)


def use_cache(sets: DataSplits, data: DataConfig, host: HostRanks, pulse: Heartbeat) -> DataSplits:
    """The same samples, read from data.cache, which is filled first. To be called by all ranks.

    Raises:
        Failure: USAGE for a cache among the images; OUTPUT, IO or SECURITY for its folder, also where another user
            keeps it for himself; what reading the files raises where it is no broken image.
    """
    if data.cache is None or isinstance(sets.validation, CachedSource):
        return sets
    if not (isinstance(sets.training, ImageFileSource) and isinstance(sets.validation, ImageFileSource)):
        return replace(
            sets, notes=(*sets.notes, "data.cache does nothing here: only image folders are decoded into it")
        )
    _refuse_cache_in_data_root(Path(data.cache), Path(data.root))
    files, rows = combine_files(sets.training, sets.validation)
    name = host.first(lambda: cache_key(files, data, pulse))
    images = _open_or_fill(Path(data.cache) / f"{name}.pixels", files, pulse)
    count = len(sets.training.labels)
    training = CachedSource(sets.training, rows[:count], images)
    validation = CachedSource(sets.validation, rows[count:], images)
    return replace(sets, training=training, validation=validation, notes=(*sets.notes, f"data.cache: {images.path}"))


def _refuse_cache_in_data_root(cache: Path, root: Path) -> None:
    """At the next start it would be one of the class folders."""
    if cache.resolve().is_relative_to(root.resolve()):
        raise Failure(
            "data.cache lies inside data.root",
            found=f"{cache}, in {root}",
            fix="set data.cache to a folder outside of data.root",
            code=ExitCode.USAGE,
        )


def combine_files(training: ImageFileSource, validation: ImageFileSource) -> tuple[ImageFileSource, SampleIndices]:
    """All files once, in one order, however they are split; and where in it those of each side are, int64 [count].

    Their labels do not matter.
    """
    every, rows = path_list.merge_paths(
        path_list.as_packed_paths(training.paths), path_list.as_packed_paths(validation.paths)
    )
    return ImageFileSource(every, torch.zeros(len(every), dtype=torch.int64), training.size), rows


def cache_key(files: ImageFileSource, data: DataConfig, pulse: Heartbeat) -> str:
    """Another one for other files, sizes, times of change, data.image_size, or another way to decode.

    Not for another place of the same folder, as on the disk of another node.

    Raises:
        Failure: NO_INPUT or IO, for a file that is gone.
    """
    digest = hashlib.sha256(f"{CACHE_VERSION} {files.size}\n".encode())
    chunks = np.array_split(np.arange(len(files.paths)), -(-len(files.paths) // FILES_PER_CHUNK))
    with ThreadPoolExecutor(STAT_THREADS) as pool:
        for told in pulse.each("data", pool.map(lambda chunk: _stat_files(files, chunk, data.root), chunks)):
            digest.update(told)
    return digest.hexdigest()[:32]


def _stat_files(files: ImageFileSource, chunk: SampleIndices, root: str) -> bytes:
    lines, above = [], str(Path(root))
    for sample in chunk:
        path = str(files.paths[sample])
        try:
            found = os.stat(path)
        except OSError as error:
            raise decode.unreadable_image_failure(Path(path), int(sample), error) from error
        lines.append(f"{path.removeprefix(above)}\0{found.st_size}\0{found.st_mtime_ns}\n")
    return "".join(lines).encode(errors="surrogateescape")


def _open_or_fill(path: Path, files: ImageFileSource, pulse: Heartbeat) -> DecodedCache:
    """The cache, whole. Of all processes that want it, on all nodes, one fills it and the others wait."""
    place, waited = path.with_suffix(".lease"), None
    while (found := open_cache(path, len(files.paths), files.size)) is None:
        with _translate_os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            held = file_lock.acquire_lock(place, waited)
        if held is None:
            waited = file_lock.wait_for_release(place, lambda _: None, beat=lambda _: _check_while_waiting(path, pulse))
            continue
        with held.held():
            if open_cache(path, len(files.paths), files.size) is None:  # while this process asked for the lease
                _fill_unless_taken_over(path, files, pulse)
    return found


def _check_while_waiting(path: Path, pulse: Heartbeat) -> None:
    """Its holder lives: what a dead one left is no matter."""
    refuse_unreadable_cache(path)
    pulse.beat("data")


def _fill_unless_taken_over(path: Path, files: ImageFileSource, pulse: Heartbeat) -> None:
    """A holder that was stopped for longer than its lease finds its file removed, by one that has filled the cache."""
    try:
        _fill_cache(path, files, pulse)
    except Failure:
        if open_cache(path, len(files.paths), files.size) is None:
            raise


def _fill_cache(path: Path, files: ImageFileSource, pulse: Heartbeat) -> None:
    """Under the lease: decode all files, on all processors of this process, since its other ranks wait for it."""
    count = len(files.paths)
    chunks = np.array_split(np.arange(count), -(-count // IMAGES_PER_CHUNK))
    cores = num_usable_cores()
    with _translate_os_errors(path), write_cache(path, count, files.size) as writer, ThreadPoolExecutor(cores) as pool:
        results = pool.map(lambda chunk: writer.put(chunk, *_decode_chunk(files, chunk)), chunks)
        try:
            for _ in pulse.each("data", results):
                pass
        finally:
            results.close()  # type: ignore[attr-defined]  # a generator: what was not begun is not read any more


def _decode_chunk(files: ImageFileSource, chunk: SampleIndices) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """The images, and which of them are whole: a broken one is left to whoever reads it, as without a cache."""
    pixels = np.zeros((len(chunk), files.size, files.size, 3), np.uint8)
    whole = np.ones(len(chunk), bool)
    for place in range(len(chunk)):
        try:
            pixels[place] = files.read(chunk[place : place + 1])[0].numpy()
        except Failure as failure:
            if failure.code != ExitCode.DATA:
                raise
            whole[place] = False
    return pixels, whole


@contextmanager
def _translate_os_errors(path: Path) -> Iterator[None]:
    """Turn what the system says of writing there into its Failure. Reading the images raises Failures of its own."""
    try:
        yield
    except OSError as error:
        failure = os_error_failure(error, path)
        failure.fix = FIXES_BY_CODE.get(failure.code, failure.fix)
        raise failure from error
