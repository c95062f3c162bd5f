"""A rank writes heartbeats to shared memory, and its parent reads them without asking it.

A heartbeat says where the rank is in its work.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar, get_args

HEARTBEAT_VARIABLE: Final = "ENTRYPOINT_PULSE"  # PAGE:STACKS, two descriptors that a rank inherits
# For stacks. Not a signal that stops a run; of the real-time signals the first ones belong to libraries and tools.
DUMP_SIGNAL: Final = signal.SIGRTMAX - 7
# What both sides take for one event: Slurm and Apptainer's starter each deliver a signal, and a terminal's Ctrl-C comes
# from it and from the parent. The same signal again within this time is no second wish.
SIGNAL_REPEAT_WINDOW_S: Final = 2.0
Phase = Literal["start", "data", "step", "evaluation", "save", "end"]
Point = Literal["", "agreement", "reads data", "forward", "backward", "optimizer"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
POINTS: Final[tuple[Point, ...]] = get_args(Point)
NO_STEP: Final = -1
# The number of the beat stands before and after the rest: where both are equal, nobody was writing meanwhile.
_FRONT_STRUCT, _BODY_STRUCT, _BACK_STRUCT = struct.Struct("<Q"), struct.Struct("<qqqqqd"), struct.Struct("<Q")
_PAGE_STRUCT = struct.Struct(
    _FRONT_STRUCT.format + _BODY_STRUCT.format[1:] + _BACK_STRUCT.format[1:]
)  # written from its front to its back
PAGE_SIZE_BYTES: Final = _PAGE_STRUCT.size
_POINT_OFFSET: Final = _FRONT_STRUCT.size + 8  # the byte that says where in a step
_CODE_BY_WORD: Final = {word: number for words in (PHASES, POINTS) for number, word in enumerate(words)}
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRecord:
    """Where a rank was when it last moved.

    number: of beats so far. step: the last finished one. first: the step that this start began after. micro: how many
    micro batches of the next step were begun. at: seconds of CLOCK_MONOTONIC. None: no step yet.
    """

    number: int
    phase: Phase
    point: Point
    step: int | None
    first: int | None
    micro: int
    at: float

    @property
    def warm(self) -> bool:
        """Whether this start has finished a step: the first one also compiles."""
        return self.step is not None and self.first is not None and self.step > self.first


class Heartbeat:
    """The rank's side. Without a page nothing is written: a rank that nobody watches."""

    def __init__(self, page: mmap.mmap | None = None) -> None:
        self._page, self._lock = page, threading.Lock()
        self._number, self._step, self._first, self._micro = 0, NO_STEP, NO_STEP, 0

    def beat(self, phase: Phase, point: Point = "", *, step: int | None = None) -> None:
        """Say that this rank is alive, and where. `step`: the last finished one, where it is known."""
        if self._page is None:
            return
        with self._lock:  # threads that read images beat too
            if step is not None and step != self._step:
                self._step, self._micro = step, 0
            if phase == "step" and self._first == NO_STEP:
                self._first = self._step
            self._micro += point == "reads data"
            self._number += 1
            place = (_CODE_BY_WORD[phase], _CODE_BY_WORD[point], self._step, self._first, self._micro)
            _PAGE_STRUCT.pack_into(self._page, 0, self._number, *place, time.monotonic(), self._number)

    def at(self, point: Point) -> None:
        """Say where in the step this rank is now, by one byte: between two beats of a step the processor's caches are
        torch's, and a whole one takes ten times as long as it looks."""
        if self._page is not None:
            self._page[_POINT_OFFSET] = _CODE_BY_WORD[point]

    def each(self, phase: Phase, items: Iterable[T]) -> Iterator[T]:
        """The same items, with a beat for each."""
        for item in items:
            self.beat(phase)
            yield item
        self.beat(phase)


class HeartbeatChannel:
    """The parent's side of one rank: its page, and a file in memory that it dumps its stacks into.

    Neither needs a disk, the interpreter's lock of the rank, or its answer.
    """

    def __init__(self) -> None:
        self.page, self.stacks = os.memfd_create("pulse"), os.memfd_create("stacks")
        os.truncate(self.page, PAGE_SIZE_BYTES)
        self._map = mmap.mmap(self.page, PAGE_SIZE_BYTES, access=mmap.ACCESS_READ)
        self._last: HeartbeatRecord | None = None

    @property
    def variable(self) -> str:
        """What the rank is told."""
        return f"{self.page}:{self.stacks}"

    def read(self) -> HeartbeatRecord | None:
        """The rank's last beat; None before its first. One that is only half written counts as the one before."""
        found = read_heartbeat(self._map)
        self._last = found or self._last
        return self._last

    def close(self) -> None:
        """To be called once the rank has ended."""
        self._map.close()
        os.close(self.page)
        os.close(self.stacks)


def read_heartbeat(page: mmap.mmap) -> HeartbeatRecord | None:
    """The beat on the page; None where there is none yet, or one is just being written."""
    (back,) = _BACK_STRUCT.unpack_from(page, _FRONT_STRUCT.size + _BODY_STRUCT.size)  # written last, so read first
    phase, point, step, first, micro, at = _BODY_STRUCT.unpack_from(page, _FRONT_STRUCT.size)
    (front,) = _FRONT_STRUCT.unpack_from(page, 0)
    if front != back or back == 0:
        return None
    known = (None if value == NO_STEP else value for value in (step, first))
    step, first = known
    return HeartbeatRecord(
        number=back, phase=PHASES[phase], point=POINTS[point], step=step, first=first, micro=micro, at=at
    )


def attach_heartbeat(environ: Mapping[str, str]) -> Heartbeat:
    """In the rank: take up what the parent handed down, and answer DUMP_SIGNAL with the stacks of all threads.

    Python's handler for it is C code that needs no lock. The descriptors go no further than to forked data workers.
    """
    try:
        page, stacks = (int(part) for part in environ.get(HEARTBEAT_VARIABLE, "").split(":"))
        shared = mmap.mmap(page, PAGE_SIZE_BYTES)
        faulthandler.register(DUMP_SIGNAL, file=stacks, all_threads=True, chain=False)
    except (ValueError, OSError):  # nobody watches, or the variable is another process' own
        return Heartbeat()
    os.set_inheritable(stacks, False)
    os.close(page)
    pulse = Heartbeat(shared)
    pulse.beat("start")
    return pulse
