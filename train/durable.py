"""Bytes become files that appear whole or not at all; an operating system's refusal becomes a Failure with a fix."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from entrypoint import ExitCode, Failure

TEMPORARY = ".tmp-"  # what a kill leaves behind carries this prefix, and `sweep` removes it

# A file server that restarted, or answered twice, reports these once or twice and then works (NFS).
PASSING = frozenset({errno.ESTALE, errno.EIO})
TRIES, PAUSE_S = 3, 0.1

_SPACE = "free space there, or set run.output_dir to another file system"
_PLACE = "set run.output_dir to a folder that you may write (in a container: mount one with -v or --bind)"
_SERVER = "look at the file system (dmesg, mount), then start again: the run goes on from its last checkpoint"
_LINK = "remove the symbolic link, or set run.output_dir to the place it points to"

# errno -> what the run ends with, and the fix. Any other number is an input/output error.
MEANING: dict[int, tuple[ExitCode, str]] = {
    errno.ENOSPC: (ExitCode.IO, _SPACE),
    errno.EDQUOT: (ExitCode.IO, "your quota is used up (quota -s, lfs quota): delete files, or " + _SPACE),
    errno.EROFS: (ExitCode.OUTPUT, _PLACE),
    errno.EACCES: (ExitCode.OUTPUT, _PLACE),
    errno.EPERM: (ExitCode.OUTPUT, _PLACE),
    errno.ENOTDIR: (ExitCode.OUTPUT, _PLACE),
    errno.EEXIST: (ExitCode.OUTPUT, _PLACE),
    errno.EISDIR: (ExitCode.OUTPUT, _PLACE),
    errno.ENAMETOOLONG: (ExitCode.OUTPUT, "use a shorter run.name or run.output_dir"),
    errno.ELOOP: (ExitCode.SECURITY, _LINK),
    errno.EFBIG: (ExitCode.RESOURCE, "raise the limit on file sizes (ulimit -f)"),
    errno.EMFILE: (ExitCode.RESOURCE, "raise the limit on open files (ulimit -n)"),
    errno.ENFILE: (ExitCode.RESOURCE, "close files on this node, or ask its administrator"),
}


def failure(error: OSError, path: Path, action: str = "write") -> Failure:
    """What a user reads when `action` on `path` was refused: the system's words, and the space that is left."""
    number = error.errno or errno.EIO
    code, fix = MEANING.get(number, (ExitCode.IO, _SERVER))
    found = f"{os.strerror(number)} (errno {number}, {errno.errorcode.get(number, '?')}){_free(path)}"
    return Failure(f"cannot {action} {path}", found=found, fix=fix, code=code)


def _free(path: Path) -> str:
    """`; 1.5 MB free of 64.0 MB` on the file system that holds `path`, or nothing when it does not answer."""
    there = next((p for p in (path, *path.parents) if p.exists()), Path("/"))
    with suppress(OSError):
        disk = os.statvfs(there)
        free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        return f"; {free / 1e6:.1f} MB free of {size / 1e6:.1f} MB"
    return ""


@contextmanager
def told(path: Path, action: str = "write") -> Iterator[None]:
    """Turn an OSError from `action` on `path` into its Failure."""
    try:
        yield
    except OSError as error:
        raise failure(error, path, action) from error


def write(path: Path, data: bytes) -> None:
    """Replace the file `path` by `data`: temporary file beside it, fsync, rename, fsync of the folder.

    After the return the new content survives a power cut; until then the old one is untouched.

    Raises:
        Failure: IO, OUTPUT, RESOURCE or SECURITY, see `MEANING`.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.urandom(4).hex()}")
    with told(path):
        try:
            create(temporary, data)
            patiently(lambda: os.rename(temporary, path))
            sync(path.parent)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise


def write_json(path: Path, value: Any) -> None:
    """`write` for a JSON value, indented for people."""
    write(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def create(path: Path, data: bytes) -> None:
    """Make the new file `path`, never through a link, and fsync it. Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(data)
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
    with told(folder):
        folder.mkdir(parents=True, exist_ok=True)
    probe = folder / f"{TEMPORARY}probe-{os.urandom(4).hex()}"
    with told(folder):
        try:
            create(probe, b"\n")
        finally:
            remove(probe)
        disk = os.statvfs(folder)
    if disk.f_bavail * disk.f_frsize < need:
        short = failure(OSError(errno.ENOSPC, "too little"), folder)
        short.expected = f"{need / 1e6:.1f} MB free"
        raise short
