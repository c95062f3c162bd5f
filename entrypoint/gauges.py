"""What a rank and its GPUs consume: figures that its parent measures, on a page of memory that the rank reads."""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Final

VARIABLE: Final = "ENTRYPOINT_GAUGES"  # a descriptor that a rank inherits
MOST: Final = 16  # GPUs of one rank: more than one only with DataParallel
# Of the rank's process and those below it, since it asked. Sums only grow, so that any two readings tell what lies
# between them. memory_bytes: now.
PROCESS: Final = ("seconds", "cpu_seconds", "memory_bytes", "memory_peak_bytes")
# Of each of its GPUs. instance: of MIG, NaN for a whole GPU. A mean is a sum by the seconds for which it was known:
# percent x seconds by busy_s, joules by energy_s, seconds at a lower clock (by reason) by reasons_s.
GPU: Final = (
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
_SIZE: Final = 4096
_NAME: Final = 48  # bytes of a GPU's UUID, and of what fills them up
_ASKED, _NAMES, _FRONT = 0, 8, 8 + MOST * _NAME
# The number of the writing stands before and after the figures: where both are equal, nobody was writing meanwhile.
_NUMBER, _BODY = struct.Struct("<Q"), struct.Struct(f"<{len(PROCESS) + MOST * len(GPU)}d")
_BACK: Final = _FRONT + _NUMBER.size + _BODY.size
TRIES: Final = 8


def width(gpus: int) -> int:
    """How many figures a rank with so many GPUs has."""
    return len(PROCESS) + gpus * len(GPU)


class Page:
    """The parent's side of one rank."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("gauges")
        os.truncate(self.descriptor, _SIZE)
        self._map = mmap.mmap(self.descriptor, _SIZE)
        self._written = 0

    def asked(self) -> tuple[str, ...] | None:
        """The UUIDs of the GPUs that the rank wants to know of; None while it has not asked."""
        if not self._map[_ASKED]:
            return None
        names = (self._map[at : at + _NAME] for at in range(_NAMES, _FRONT, _NAME))
        return tuple(name.rstrip(b"\0").decode(errors="replace") for name in names if name[0])

    def write(self, figures: Sequence[float]) -> None:
        """Let the rank read these: of PROCESS, then of GPU for each of its GPUs."""
        self._written += 1
        filled = [*figures, *[math.nan] * (width(MOST) - len(figures))]
        _NUMBER.pack_into(self._map, _FRONT, self._written)
        _BODY.pack_into(self._map, _FRONT + _NUMBER.size, *filled)
        _NUMBER.pack_into(self._map, _BACK, self._written)

    def close(self) -> None:
        """To be called once the rank has ended. Whoever still writes is refused."""
        self._map.close()
        os.close(self.descriptor)


class Gauges:
    """The rank's side. Without a page nothing is known: a rank that nobody measures."""

    def __init__(self, page: mmap.mmap | None = None) -> None:
        self._page = page
        self._last: dict[int, tuple[float, ...]] = {}

    def ask(self, gpus: Sequence[str]) -> None:
        """Say of which GPUs, by their UUIDs; measuring begins now."""
        if self._page is None:
            return
        for number, name in enumerate(gpus[:MOST]):
            at = _NAMES + number * _NAME
            self._page[at : at + _NAME] = name.encode()[: _NAME - 1].ljust(_NAME, b"\0")
        self._page[_ASKED] = 1

    def read(self, gpus: int) -> tuple[float, ...]:
        """The newest figures, of so many GPUs; NaN for what is not known. Never waits for who writes them."""
        unknown = (math.nan,) * width(gpus)
        if self._page is None:
            return unknown
        found = next(filter(None, (_read(self._page) for _ in range(TRIES))), None)
        if found is not None:
            self._last[gpus] = found[: width(gpus)]
        return self._last.get(gpus, unknown)


def _read(page: mmap.mmap) -> tuple[float, ...] | None:
    """All figures; None where there are none yet, or some are just being written."""
    (back,) = _NUMBER.unpack_from(page, _BACK)  # written last, so read first
    figures = _BODY.unpack_from(page, _FRONT + _NUMBER.size)
    (front,) = _NUMBER.unpack_from(page, _FRONT)
    return figures if front == back != 0 else None


def attach(environ: Mapping[str, str]) -> Gauges:
    """In the rank: take up the page that the parent handed down, if it did."""
    try:
        number = int(environ.get(VARIABLE, ""))
        shared = mmap.mmap(number, _SIZE)
        os.close(number)
    except (ValueError, OSError):  # nobody measures, or the variable is another process' own
        return Gauges()
    return Gauges(shared)
