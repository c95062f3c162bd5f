"""Bytes become files that appear whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from train.files import direct, refusals

TEMPORARY = ".tmp-"  # what a kill leaves behind carries this prefix, and `sweep` removes it

# A file server that restarted, or answered twice, reports these once or twice and then works (NFS).
PASSING = frozenset({errno.ESTALE, errno.EIO})
TRIES, PAUSE_S = 3, 0.1


def write(path: Path, data: bytes) -> None:
    """Replace the file `path` by `data`: temporary file beside it, fsync, rename, fsync of the folder.

    After the return the new content survives a power cut; until then the old one is untouched.

    Raises:
        Failure: IO, OUTPUT, RESOURCE or SECURITY, as in `refusals.MEANING`.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.urandom(4).hex()}")
    with refusals.told(path):
        try:
            create(temporary, data)
            patiently(lambda: os.rename(temporary, path))
            sync(path.parent)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def write_json(path: Path, value: Any) -> None:
    """`write` for a JSON value, indented for people. Bytes of a path that are no text become JSON's own escapes."""
    write(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode(errors="backslashreplace"))


def create(path: Path, data: bytes | memoryview) -> None:
    """Make the new file `path`, never through a link, and fsync it. Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        rest = direct.write(handle, memoryview(data))
        while rest:
            rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)  # NFS and quotas may report only here: let it raise


def sync(folder: Path) -> None:
    """Make the names in `folder` survive a power cut. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some FUSE and CIFS mounts cannot, and need not
            raise
    finally:
        os.close(handle)


def patiently(action: Callable[[], None]) -> None:
    """Run `action`, again after a passing error of a file server. Raises the last OSError."""
    for left in reversed(range(TRIES)):
        try:
            return action()
        except OSError as error:
            if error.errno not in PASSING or not left:
                raise
            time.sleep(PAUSE_S)
    return None


def sweep(folder: Path) -> list[str]:
    """Remove what killed writers left in `folder`; the names removed. Call it before this run writes there."""
    left = sorted(folder.glob(f"{TEMPORARY}*"))
    for path in left:
        remove(path)
    return [path.name for path in left]


def remove(path: Path) -> None:
    """Delete a file, a link or a whole folder, as far as the system allows."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def prepare(folder: Path, need: int = 0) -> None:
    """Make `folder`, and show by writing that files can be kept there, with `need` bytes to spare.

    Raises:
        Failure: OUTPUT when it cannot be written, IO when there is less room than `need`.
    """
    with refusals.told(folder):
        folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f"{TEMPORARY}probe-{os.urandom(4).hex()}"
    with refusals.told(folder):
        try:
            create(probe, b"\n")
        finally:
            remove(probe)
    refuse_full(folder, need)


def refuse_full(folder: Path, need: int) -> None:
    """Raises Failure (IO) where the file system that holds `folder`, or will, has less than `need` bytes left."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    with refusals.told(folder):
        disk = os.statvfs(there)
    if disk.f_bavail * disk.f_frsize < need:
        short = refusals.failure(OSError(errno.ENOSPC, "too little"), folder)
        short.expected = f"{refusals.sized(need)} free"
        raise short
