"""A file of decoded images, mapped into memory: written whole or not at all, with a checksum for each image."""

from __future__ import annotations

import errno
import json
import os
import pwd
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from entrypoint import ExitCode, Failure
from train.files import durable

VERSION: Final = 2  # raised whenever the same file would be decoded to other pixels
CHANNELS: Final = 3
BESIDE: Final = 5  # bytes beside each image: its checksum, and whether there is one

Bytes = npt.NDArray[np.uint8]
Marks = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stock:
    """pixels: uint8 [N, size, size, 3], mapped. sums: of each image, uint32 [N]. whole: which are there, bool [N]."""

    path: Path
    pixels: Bytes
    sums: npt.NDArray[np.uint32]
    whole: Marks

    def take(self, rows: npt.NDArray[np.int64]) -> tuple[Bytes, Marks, bool]:
        """A copy of these images, which of them can be used, and whether one is not what was written."""
        taken, whole = self.pixels[rows], self.whole[rows]
        sums = np.fromiter((zlib.crc32(image) for image in taken), np.uint32, len(rows))
        same = sums == self.sums[rows]
        return taken, whole & same, bool((whole & ~same).any())

    def give_up(self) -> bool:
        """Let the next start make it anew. Whether this process was the first to say so."""
        try:
            _manifest(self.path).unlink()
        except OSError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Writer:
    """Takes the images in any order, from several threads."""

    handle: int
    count: int
    size: int
    sums: npt.NDArray[np.uint32] = field(init=False)
    whole: Marks = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sums", np.zeros(self.count, np.uint32))
        object.__setattr__(self, "whole", np.zeros(self.count, bool))

    def put(self, rows: npt.NDArray[np.int64], pixels: Bytes, whole: Marks) -> None:
        """Images of rows that follow each other. Raises OSError."""
        self.sums[rows], self.whole[rows] = [zlib.crc32(image) for image in pixels], whole
        _write(self.handle, pixels, int(rows[0]) * pixels[0].nbytes)

    def finish(self) -> None:
        """Checksums and marks behind the images, and all of it on the disk. Raises OSError."""
        end = self.count * _of_one(self.size)
        _write(self.handle, self.sums, end)
        _write(self.handle, self.whole, end + self.sums.nbytes)
        os.fsync(self.handle)


def opened(path: Path, count: int, size: int) -> Stock | None:
    """The images, or None where the file is missing, of another size than it should be, or was given up.

    Raises:
        Failure: OUTPUT where it is there, for other users: to decode all of it again would only replace theirs.
    """
    try:
        if json.loads(_manifest(path).read_bytes()) != _told(count, size) or os.path.getsize(path) != bytes_(
            count, size
        ):
            return None
        mapped = np.asarray(np.memmap(path, np.uint8, "r"))
    except PermissionError as error:
        raise _not_for_this_user(Path(error.filename)) from error
    except (OSError, ValueError):
        return None
    end = count * _of_one(size)
    return Stock(
        path=path,
        pixels=mapped[:end].reshape(count, size, size, CHANNELS),
        sums=np.frombuffer(mapped[end : end + 4 * count].tobytes(), np.uint32),
        whole=mapped[end + 4 * count :] == 1,
    )


@contextmanager
def writing(path: Path, count: int, size: int) -> Iterator[Writer]:
    """A new file, which replaces the one at `path` once the block has ended without an error.

    Raises:
        OSError: as the system says it; ENOSPC before anything is written where there is too little room.
        Failure: as `durable.write`.
    """
    need, free = bytes_(count, size), _free(path.parent)
    if free < need:
        raise OSError(errno.ENOSPC, f"{need / 1e6:.1f} MB are needed")
    temporary = path.with_name(f"{durable.TEMPORARY}{path.name}-{os.urandom(4).hex()}")
    for left in _unfinished(path):  # of one that was killed
        durable.remove(left)
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        writer = Writer(handle, count, size)
        yield writer
        writer.finish()
        durable.patiently(lambda: os.rename(temporary, path))
        durable.write_json(_manifest(path), _told(count, size))
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    finally:
        os.close(handle)


def refuse_shut(path: Path) -> None:
    """Whether this user will be able to read what another process is writing, asked before it is waited for.

    Raises:
        Failure: OUTPUT.
    """
    for file in _unfinished(path):
        with suppress(OSError):  # gone meanwhile
            try:
                os.close(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
            except PermissionError as error:
                raise _not_for_this_user(file) from error


def _unfinished(path: Path) -> Iterator[Path]:
    return path.parent.glob(f"{durable.TEMPORARY}{path.stem}.*")


def _not_for_this_user(file: Path) -> Failure:
    user, folder = _owner(file), file.parent
    return Failure(
        f"data.cache is {user}'s, and cannot be read",
        found=f"{file}, as {_named(os.geteuid())}",
        fix=f"let {user} run `chmod -R g+rX {folder}` (and fill it under umask 027), or set data.cache "
        "to another folder",
        code=ExitCode.OUTPUT,
    )


def _owner(file: Path) -> str:
    """Of the file, or, where a folder above it is shut, of that one."""
    for place in (file, *file.parents):
        with suppress(OSError):
            return _named(place.stat().st_uid)
    return "another user"


def _named(user: int) -> str:
    """Containers often know no names of users."""
    with suppress(KeyError):
        return pwd.getpwuid(user).pw_name
    return f"uid {user}"


def bytes_(count: int, size: int) -> int:
    """Of the whole file."""
    return count * (_of_one(size) + BESIDE)


def _of_one(size: int) -> int:
    return size * size * CHANNELS


def _free(folder: Path) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def _told(count: int, size: int) -> dict[str, Any]:
    return {"version": VERSION, "images": count, "image_size": size}


def _manifest(path: Path) -> Path:
    return path.with_suffix(".json")


def _write(handle: int, array: npt.NDArray[Any], place: int) -> None:
    rest = np.ascontiguousarray(array).data.cast("B")
    while rest:
        written = os.pwrite(handle, rest, place)
        rest, place = rest[written:], place + written
