"""An operating system's refusal to read or write becomes a Failure with its code and a fix."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from entrypoint import ExitCode, Failure

_SPACE = "free space there, or set run.output_dir to another file system"
_PLACE = "set run.output_dir to a folder that you may write (in a container: mount one with -v or --bind)"
_SERVER = "look at the file system (dmesg, mount), then start again: the run goes on from its last checkpoint"
_LINK = "remove the symbolic link, or set run.output_dir to the place it points to"

# errno -> what the run ends with, and the fix. Any other number is an input/output error.
MEANING: dict[int, tuple[ExitCode, str]] = {
    errno.ENOSPC: (ExitCode.IO, _SPACE),
    errno.EDQUOT: (ExitCode.IO, "your quota is used up (quota -s, lfs quota): delete files, or " + _SPACE),
    errno.EROFS: (ExitCode.OUTPUT, f"{_PLACE}; one that was writable until now has failed: see dmesg"),
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
    there = next(
        (p for p in (path, *path.parents) if os.path.exists(p)), Path("/")
    )  # Path.exists() raises for a long name
    with suppress(OSError):
        disk = os.statvfs(there)
        free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        return f"; {sized(free)} free of {sized(size)}"
    return ""


def sized(count: int) -> str:
    """`1.5 MB`; what is less than one, in kB: a small checkpoint is no 0.0 MB."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


@contextmanager
def told(path: Path, action: str = "write") -> Iterator[None]:
    """Turn an OSError from `action` on `path` into its Failure."""
    try:
        yield
    except OSError as error:
        raise failure(error, path, action) from error
