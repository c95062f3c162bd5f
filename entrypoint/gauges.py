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

RESOURCES_VARIABLE: Final = "ENTRYPOINT_GAUGES"  # a descriptor that a rank inherits
MAX_GPUS: Final = 16  # GPUs of one rank: more than one only with DataParallel
# Of the rank's process and those below it, since it asked. Sums only grow, so that any two readings tell what lies
# between them. memory_bytes: now.
PROCESS_FIELDS: Final = ("seconds", "cpu_seconds", "memory_bytes", "memory_peak_bytes")
# Of each of its GPUs. instance: of MIG, NaN for a whole GPU. A mean is a sum by the seconds for which it was known:
# percent x seconds by busy_s, joules by energy_s, seconds at a lower clock (by reason) by reasons_s.
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
_UUID_BYTES: Final = 48  # bytes of a GPU's UUID, and of what fills them up
_REQUESTED_OFFSET, _UUIDS_OFFSET, _FRONT_OFFSET = 0, 8, 8 + MAX_GPUS * _UUID_BYTES
# The number of the writing stands before and after the figures: where both are equal, nobody was writing meanwhile.
_SEQUENCE_STRUCT, _FIGURES_STRUCT = (
    struct.Struct("<Q"),
    struct.Struct(f"<{len(PROCESS_FIELDS) + MAX_GPUS * len(GPU_FIELDS)}d"),
)
_BACK_OFFSET: Final = _FRONT_OFFSET + _SEQUENCE_STRUCT.size + _FIGURES_STRUCT.size
MAX_READ_ATTEMPTS: Final = 8


def num_fields(gpus: int) -> int:
    """How many figures a rank with so many GPUs has."""
    return len(PROCESS_FIELDS) + gpus * len(GPU_FIELDS)


class ResourcePage:
    """The parent's side of one rank."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("gauges")
        os.truncate(self.descriptor, _PAGE_BYTES)
        self._map = mmap.mmap(self.descriptor, _PAGE_BYTES)
        self._written = 0

    def asked(self) -> tuple[str, ...] | None:
        """The UUIDs of the GPUs that the rank wants to know of; None while it has not asked."""
        if not self._map[_REQUESTED_OFFSET]:
            return None
        names = (self._map[at : at + _UUID_BYTES] for at in range(_UUIDS_OFFSET, _FRONT_OFFSET, _UUID_BYTES))
        return tuple(name.rstrip(b"\0").decode(errors="replace") for name in names if name[0])

    def write(self, figures: Sequence[float]) -> None:
        """Let the rank read these: of PROCESS_FIELDS, then of GPU for each of its GPUs."""
        self._written += 1
        filled = [*figures, *[math.nan] * (num_fields(MAX_GPUS) - len(figures))]
        _SEQUENCE_STRUCT.pack_into(self._map, _FRONT_OFFSET, self._written)
        _FIGURES_STRUCT.pack_into(self._map, _FRONT_OFFSET + _SEQUENCE_STRUCT.size, *filled)
        _SEQUENCE_STRUCT.pack_into(self._map, _BACK_OFFSET, self._written)

    def close(self) -> None:
        """To be called once the rank has ended. Whoever still writes is refused."""
        self._map.close()
        os.close(self.descriptor)


class ResourceReader:
    """The rank's side. Without a page nothing is known: a rank that nobody measures."""

    def __init__(self, page: mmap.mmap | None = None) -> None:
        self._page = page
        self._last: dict[int, tuple[float, ...]] = {}

    def ask(self, gpus: Sequence[str]) -> None:
        """Say of which GPUs, by their UUIDs; measuring begins now."""
        if self._page is None:
            return
        for number, name in enumerate(gpus[:MAX_GPUS]):
            at = _UUIDS_OFFSET + number * _UUID_BYTES
            self._page[at : at + _UUID_BYTES] = name.encode()[: _UUID_BYTES - 1].ljust(_UUID_BYTES, b"\0")
        self._page[_REQUESTED_OFFSET] = 1

    def read(self, gpus: int) -> tuple[float, ...]:
        """The newest figures, of so many GPUs; NaN for what is not known. Never waits for who writes them."""
        unknown = (math.nan,) * num_fields(gpus)
        if self._page is None:
            return unknown
        found = next(filter(None, (_read_page(self._page) for _ in range(MAX_READ_ATTEMPTS))), None)
        if found is not None:
            self._last[gpus] = found[: num_fields(gpus)]
        return self._last.get(gpus, unknown)


def _read_page(page: mmap.mmap) -> tuple[float, ...] | None:
    """All figures; None where there are none yet, or some are just being written."""
    (back,) = _SEQUENCE_STRUCT.unpack_from(page, _BACK_OFFSET)  # written last, so read first
    figures = _FIGURES_STRUCT.unpack_from(page, _FRONT_OFFSET + _SEQUENCE_STRUCT.size)
    (front,) = _SEQUENCE_STRUCT.unpack_from(page, _FRONT_OFFSET)
    return figures if front == back != 0 else None


def attach_resources(environ: Mapping[str, str]) -> ResourceReader:
    """In the rank: take up the page that the parent handed down, if it did."""
    try:
        number = int(environ.get(RESOURCES_VARIABLE, ""))
        shared = mmap.mmap(number, _PAGE_BYTES)
        os.close(number)
    except (ValueError, OSError):  # nobody measures, or the variable is another process' own
        return ResourceReader()
    return ResourceReader(shared)
