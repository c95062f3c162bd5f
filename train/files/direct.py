"""Large content goes from memory to the disk without a copy of it in the page cache, where both allow it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from typing import Final

BLOCK: Final = 4096  # memory and places in a file must be multiples of it: no disk asks for more
LEAST: Final = 2**20  # bytes: smaller files are written as usual
CHUNK: Final = 2**24  # bytes of one call
# What file systems say that cannot, and what the kernel says of memory that only a driver knows (some pinned memory).
REFUSED: Final = (errno.EINVAL, errno.EOPNOTSUPP, errno.EFAULT)


def write(handle: int, data: memoryview) -> memoryview:
    """Write whole blocks of `data` to a new file, if it is large; returns what is left to be written.

    A checkpoint is read by nobody soon, and its copy in the page cache displaces what is. Where the kernel has to find
    memory for that copy first, it costs a processor more than hashing the file. What refuses leaves the rest.

    Raises:
        OSError: as os.write.
    """
    if len(data) < LEAST or not _is_aligned(data):
        return data
    flags, at, whole = fcntl.fcntl(handle, fcntl.F_GETFL), 0, len(data) // BLOCK * BLOCK
    try:
        fcntl.fcntl(handle, fcntl.F_SETFL, flags | os.O_DIRECT)
        while at < whole:
            at += os.write(handle, data[at : min(at + CHUNK, whole)])
    except OSError as error:
        if error.errno not in REFUSED:
            raise
    finally:
        fcntl.fcntl(handle, fcntl.F_SETFL, flags)
    return data[at:]


def _is_aligned(data: memoryview) -> bool:
    """Only of memory that may be written is the place told."""
    return not data.readonly and ctypes.addressof(ctypes.c_char.from_buffer(data)) % BLOCK == 0
