"""`preload_mapped_files` reads the files that this process has mapped into memory.

The process can then continue without the file system they lie on. Apptainer without root mounts an
image by a FUSE server, one more process of the job step. Slurm's proctrack/linuxproc signals that
one too: it ends, and each page of a library that was not read yet is a SIGBUS from then on.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from entrypoint.machine import container_engine

MADV_POPULATE_READ: Final = 22  # MADV_POPULATE_READ, since Linux 5.14: older kernels say EINVAL, and nothing is read
# Gigabytes of GPU kernels, which are on the GPU by the time they are needed.
SKIPPED_PATHS: Final = ("/nvidia/", "/triton/")
_MAPPED_FILE: Final = re.compile(r"([0-9a-f]+)-([0-9a-f]+) r.{2}p \S+ \S+ [1-9]\d* +(/.*)")

Advise = Callable[[int, int], bool]


def preload_mapped_files(
    proc: Path = Path("/proc/self"), advise: Advise | None = None, within: str | None = None
) -> int:
    """Read all of them, where the root may be FUSE's; returns how many bytes those are, 0 elsewhere. Never fails.

    within: the kind of container, by default this one's.
    """
    try:
        if not root_may_vanish((proc / "mountinfo").read_text(errors="replace"), within or container_engine()):
            return 0
        ask = advise or _load_madvise()
        return sum(
            size for start, size in file_mappings((proc / "maps").read_text(errors="replace")) if ask(start, size)
        )
    except (OSError, AttributeError, ValueError):
        return 0


def root_may_vanish(mountinfo: str, within: str) -> bool:
    """Whether `/` is a FUSE mount, or Apptainer's overlay: what lies below that is not to be seen from inside."""
    fields = [line.split() for line in mountinfo.splitlines()]
    kinds = [found[found.index("-") + 1] for found in fields if len(found) > 5 and found[4] == "/" and "-" in found]
    return bool(kinds) and (kinds[-1].startswith("fuse") or (kinds[-1], within) == ("overlay", "apptainer"))


def file_mappings(maps: str) -> Iterator[tuple[int, int]]:
    """(address, bytes) of each private, readable mapping of a file, but for those left out."""
    for line in maps.splitlines():
        found = _MAPPED_FILE.fullmatch(line)
        if found and not any(part in found[3] for part in SKIPPED_PATHS):
            start, end = int(found[1], 16), int(found[2], 16)
            yield start, end - start


def _load_madvise() -> Advise:
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return lambda start, size: libc.madvise(start, size, MADV_POPULATE_READ) == 0
