"""`replace_file` writes a file that appears complete or not at all, never through a link or into another writer's file.

All writers of the project use it. The new content is in a hidden file with a random name beside the final one until it
is complete. A killed writer leaves that file; `left_files` lists those of a name.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

TEMPORARY_PREFIX: Final = ".tmp-"
MAX_WRITE_S: Final = 3600.0  # a temporary file that is older is a killed writer's
MAX_STEM_BYTES: Final = 100  # of the final name: 255 bytes are the most of a name, and some file systems allow 143

# NFS reports these once or twice after a file server has restarted, or has answered twice.
TRANSIENT_ERRNOS: Final = frozenset({errno.ESTALE, errno.EIO})
MAX_TRIES: Final = 3
RETRY_PAUSE_S = 0.1


def temporary_path(path: Path, label: str = "") -> Path:
    """A hidden name beside `path` that nobody else has. label: comes before the name."""
    return path.with_name(f"{TEMPORARY_PREFIX}{label}{_stem(path.name)}-{os.urandom(8).hex()}")


def left_files(folder: Path, names: Collection[str], min_age_s: float = 0.0, label: str = "") -> list[Path]:
    """The temporary files and folders of these names in `folder`, if nobody has touched them for so long.

    Without a lock, a writer that lives cannot be told from a killed one but by the age. label: as in `temporary_path`.

    Raises:
        OSError: a file cannot be examined, or went meanwhile.
    """
    pattern = re.compile(rf"{re.escape(TEMPORARY_PREFIX + label)}(.*)-[0-9a-f]+", re.DOTALL)
    stems = {_stem(name) for name in names}
    matches = ((path, pattern.fullmatch(path.name)) for path in sorted(folder.glob(f"{TEMPORARY_PREFIX}*")))
    left = [path for path, match in matches if match and match[1] in stems]
    return [path for path in left if not min_age_s or time.time() - path.lstat().st_mtime >= min_age_s]


def open_new_file(path: Path) -> int:
    """Create the file `path`, never through a link: its descriptor, for reading and writing. Raises OSError."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


@contextmanager
def replace_file(path: Path, *, durable: bool = True, label: str = "", replace: bool = True) -> Iterator[BinaryIO]:
    """Yield a stream for the new content of `path`, which appears there if the block ends without an error.

    Until then the old content is untouched; after an error nothing is left. durable: call fsync on the file and on the
    folder, so that the new content survives a power cut. label: as in `temporary_path`. replace: with False a file
    that is there already stays, also if another host wrote it and this one does not see it yet.

    Raises:
        OSError: the system refuses; FileExistsError without `replace`.
    """
    temporary = temporary_path(path, label)
    try:
        handle = open_new_file(temporary)
        try:
            with open(handle, "w+b", closefd=False) as stream:
                yield stream
            if durable:
                os.fsync(handle)
        finally:
            os.close(handle)  # NFS and quotas may report an error only at close: let it raise
        rename = os.rename if replace else _rename_to_new
        retry_transient_errors(lambda: rename(temporary, path))
        if durable:
            fsync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _rename_to_new(temporary: Path, path: Path) -> None:
    """Rename it unless `path` exists. A link is refused by the file server, which knows what other hosts have written.

    Raises:
        OSError: `path` exists, or the system refuses.
    """
    try:
        os.link(temporary, path)
        os.unlink(temporary)
    except OSError as error:
        # A transient error is no lack of links: the next try asks the server again. NFS caches what is there.
        if error.errno in {errno.EEXIST, *TRANSIENT_ERRNOS} or os.path.lexists(path):
            raise
        os.rename(temporary, path)  # a file system without links: what this host sees must do


def fsync_folder(folder: Path) -> None:
    """Make the names in `folder` survive a power cut. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some FUSE and CIFS mounts cannot, and need not
            raise
    finally:
        os.close(handle)


def retry_transient_errors(action: Callable[[], None]) -> None:
    """Run `action`, and repeat it after a transient error of a file server. Raises the last OSError."""
    for left in reversed(range(MAX_TRIES)):
        try:
            return action()
        except OSError as error:
            if error.errno not in TRANSIENT_ERRNOS or not left:
                raise
            time.sleep(RETRY_PAUSE_S)
    return None


def _stem(name: str) -> str:
    return os.fsencode(name)[:MAX_STEM_BYTES].decode(errors="ignore")
