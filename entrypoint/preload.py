"""`preload_mapped_files` reads the files that this process has mapped into memory.

The process can then continue without the file system that they are on. Apptainer without root
mounts an image with a FUSE server, which is one more process of the job step. Slurm's
proctrack/linuxproc signals that server too; it ends, and reading a page of a library for the first
time is then a SIGBUS.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from typing import Final

from entrypoint import engines
from entrypoint.files import StrPath, read_text
from entrypoint.machine import find_mount

MADV_POPULATE_READ: Final = 22  # since Linux 5.14; older kernels return EINVAL, and nothing is read
# Gigabytes of GPU kernels, which are copied to the GPU anyway.
SKIPPED_PATHS: Final = ("/nvidia/", "/triton/")
_MAPPED_FILE: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r.{2}p \S+ \S+ [1-9]\d* +(/.*)")

Advise = Callable[[int, int], bool]


def preload_mapped_files(root: StrPath = "/", advise: Advise | None = None, engine: str | None = None) -> int:
    """Read all mapped files if `/` may vanish; return their bytes, otherwise 0. Never raises.

    It may if it is a FUSE mount, or Apptainer's overlay, whose lower layers may be one.

    root: the folder with proc/. engine: the container engine, by default the detected one.
    """
    fs_type = find_mount("/", root)[1]
    if not (fs_type.startswith("fuse") or (fs_type, engine or engines.detect()) == ("overlay", "apptainer")):
        return 0
    try:
        libc = ctypes.CDLL(None)
        libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    except (OSError, AttributeError):  # another C library
        return 0
    populate = advise or (lambda start, size: libc.madvise(start, size, MADV_POPULATE_READ) == 0)
    return sum(size for start, size in file_mappings(read_text(root, "proc/self/maps")) if populate(start, size))


def file_mappings(maps: str) -> Iterator[tuple[int, int]]:
    """(address, bytes) of each private, readable mapping of a file, except SKIPPED_PATHS."""
    for line in maps.splitlines():
        match = _MAPPED_FILE.fullmatch(line)
        if match and not any(part in match[3] for part in SKIPPED_PATHS):
            start, end = int(match[1], 16), int(match[2], 16)
            yield start, end - start
