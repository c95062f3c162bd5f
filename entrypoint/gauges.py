"""A page of shared memory carries the resource use of a rank and its GPUs to the rank.

The parent measures and writes; the rank only reads.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Final

RESOURCES_VARIABLE: Final = "ENTRYPOINT_GAUGES"  # the page's file descriptor, which a rank inherits
MAX_GPUS: Final = 16  # per rank; more than one only with DataParallel
# Of the rank's process and its descendants, since the rank requested it. Sums only grow, so the
# difference of any two readings is what was used in between. memory_bytes: the latest value.
PROCESS_FIELDS: Final = ("seconds", "cpu_seconds", "memory_bytes", "memory_peak_bytes")
# Of each of its GPUs. instance: the MIG instance, NaN for a full GPU. A mean is a sum divided by
# the seconds for which NVML reported it: busy (percent x seconds) / busy_s, energy_j / energy_s,
# hot_s (and other reasons) / reasons_s.
GPU_FIELDS: Final = (
    "index",
    "instance",
    "busy",
    "busy_s",
    "memory_bytes",
    "memory_peak_bytes",
    "memory_total_bytes",
    "energy_j",
    "energy_s",
    "temperature_c",
    "temperature_peak_c",
    "hot_s",
    "brake_s",
    "slow_s",
    "cap_s",
    "reasons_s",
)
_PAGE_BYTES: Final = 4096
_UUID_BYTES: Final = 48  # a GPU's UUID, padded with zeros
_REQUESTED_OFFSET, _UUIDS_OFFSET, _FRONT_OFFSET = 0, 8, 8 + MAX_GPUS * _UUID_BYTES
# A seqlock: the sequence number is written before and after the figures; a reader that finds both
# equal has a consistent copy.
_SEQUENCE_STRUCT, _FIGURES_STRUCT = (
    struct.Struct("<Q"),
    struct.Struct(f"<{len(PROCESS_FIELDS) + MAX_GPUS * len(GPU_FIELDS)}d"),
)
_BACK_OFFSET: Final = _FRONT_OFFSET + _SEQUENCE_STRUCT.size + _FIGURES_STRUCT.size
MAX_READ_ATTEMPTS: Final = 8


def num_fields(gpus: int) -> int:
    """The number of figures of a rank with so many GPUs."""
    return len(PROCESS_FIELDS) + gpus * len(GPU_FIELDS)


class ResourcePage:
    """The parent's side of one rank's page."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("gauges")
        os.truncate(self.descriptor, _PAGE_BYTES)
        self._map = mmap.mmap(self.descriptor, _PAGE_BYTES)
        self._sequence = 0

    def requested_gpus(self) -> tuple[str, ...] | None:
        """The UUIDs of the GPUs that the rank wants measured; None before its request."""
        if not self._map[_REQUESTED_OFFSET]:
            return None
        uuids = (
            self._map[offset : offset + _UUID_BYTES] for offset in range(_UUIDS_OFFSET, _FRONT_OFFSET, _UUID_BYTES)
        )
        return tuple(uuid.rstrip(b"\0").decode(errors="replace") for uuid in uuids if uuid[0])

    def write(self, figures: Sequence[float]) -> None:
        """Publish figures: PROCESS_FIELDS, then GPU_FIELDS for each of the rank's GPUs."""
        self._sequence += 1
        filled = [*figures, *[math.nan] * (num_fields(MAX_GPUS) - len(figures))]
        _SEQUENCE_STRUCT.pack_into(self._map, _FRONT_OFFSET, self._sequence)
        _FIGURES_STRUCT.pack_into(self._map, _FRONT_OFFSET + _SEQUENCE_STRUCT.size, *filled)
        _SEQUENCE_STRUCT.pack_into(self._map, _BACK_OFFSET, self._sequence)

    def close(self) -> None:
        """Call this when the rank has ended; a later write raises ValueError."""
        self._map.close()
        os.close(self.descriptor)


class ResourceReader:
    """The rank's side of the page.

    Without a page (nobody measures this rank) every figure is NaN.
    """

    def __init__(self, page: mmap.mmap | None = None) -> None:
        self._page = page
        self._last: dict[int, tuple[float, ...]] = {}

    def ask(self, gpus: Sequence[str]) -> None:
        """Ask the parent to measure this rank and the GPUs with these UUIDs, from now on."""
        if self._page is None:
            return
        for index, uuid in enumerate(gpus[:MAX_GPUS]):
            offset = _UUIDS_OFFSET + index * _UUID_BYTES
            self._page[offset : offset + _UUID_BYTES] = uuid.encode()[: _UUID_BYTES - 1].ljust(_UUID_BYTES, b"\0")
        self._page[_REQUESTED_OFFSET] = 1

    def read(self, gpus: int) -> tuple[float, ...]:
        """The newest figures for so many GPUs, NaN where unknown. Never waits for the writer."""
        unknown = (math.nan,) * num_fields(gpus)
        if self._page is None:
            return unknown
        figures = next(filter(None, (_read_page(self._page) for _ in range(MAX_READ_ATTEMPTS))), None)
        if figures is not None:
            self._last[gpus] = figures[: num_fields(gpus)]
        return self._last.get(gpus, unknown)


def _read_page(page: mmap.mmap) -> tuple[float, ...] | None:
    """All figures; None before the first write and during a write."""
    (back,) = _SEQUENCE_STRUCT.unpack_from(page, _BACK_OFFSET)  # written last, so read first
    figures = _FIGURES_STRUCT.unpack_from(page, _FRONT_OFFSET + _SEQUENCE_STRUCT.size)
    (front,) = _SEQUENCE_STRUCT.unpack_from(page, _FRONT_OFFSET)
    return figures if front == back != 0 else None


def attach_resources(environ: Mapping[str, str]) -> ResourceReader:
    """In the rank: map the page that the parent passed down, if there is one."""
    try:
        descriptor = int(environ.get(RESOURCES_VARIABLE, ""))
        page = mmap.mmap(descriptor, _PAGE_BYTES)
        os.close(descriptor)
    except (ValueError, OSError):  # nobody measures, or another process set the variable
        return ResourceReader()
    return ResourceReader(page)
