"""A rank writes heartbeats to shared memory, and its parent reads them without the rank's help.

A heartbeat says which phase and step the rank is in.
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
# Asks for stacks. It must not be a signal that stops a run, and libraries and tools use the first
# real-time signals.
DUMP_SIGNAL: Final = signal.SIGRTMAX - 7
TRACE_SIGNAL: Final = signal.SIGRTMAX - 8  # asks for the oldest collective operation that has not ended
# The same signal within this time counts as one request: Slurm and Apptainer's starter each deliver
# it, and Ctrl-C comes from the terminal and from the parent.
SIGNAL_REPEAT_WINDOW_S: Final = 2.0
Phase = Literal["start", "data", "step", "evaluation", "save", "end"]
Point = Literal["", "agreement", "reads data", "forward", "backward", "optimizer", "device"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)
POINTS: Final[tuple[Point, ...]] = get_args(Point)
NO_STEP: Final = -1
TRACE_PREFIX: Final = "# unfinished collective: "
# A seqlock: the beat's number is written before and after the record; a reader that finds both
# equal has a consistent copy.
_FRONT_STRUCT, _BODY_STRUCT, _BACK_STRUCT = struct.Struct("<Q"), struct.Struct("<qqqqqd"), struct.Struct("<Q")
_PAGE_STRUCT = struct.Struct(
    _FRONT_STRUCT.format + _BODY_STRUCT.format[1:] + _BACK_STRUCT.format[1:]
)  # written from front to back
PAGE_SIZE_BYTES: Final = _PAGE_STRUCT.size
_POINT_OFFSET: Final = _FRONT_STRUCT.size + 8  # the byte that holds the point within the step
_CODE_BY_NAME: Final = {name: code for names in (PHASES, POINTS) for code, name in enumerate(names)}
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRecord:
    """Where a rank was when it last moved.

    number: beats so far. step: the last finished step, None before it. first: the last step before
    this start, None if there was none. micro: micro batches of the next step that were begun. at:
    seconds of CLOCK_MONOTONIC.
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
    """The rank's side of the channel.

    Without a page (nobody watches this rank) nothing is written. stacks: a descriptor of the
    parent's file for stacks.
    """

    def __init__(self, page: mmap.mmap | None = None, stacks: int | None = None) -> None:
        self._page, self._stacks, self._lock = page, stacks, threading.Lock()
        self._number, self._step, self._first, self._micro = 0, NO_STEP, NO_STEP, 0

    def beat(self, phase: Phase, point: Point = "", *, step: int | None = None) -> None:
        """Record that this rank is alive, and in which phase it is.

        step: the last finished step, if it is known.
        """
        if self._page is None:
            return
        with self._lock:  # threads that read images write beats too
            if step is not None and step != self._step:
                self._step, self._micro = step, 0
            if phase == "step" and self._first == NO_STEP:
                self._first = self._step
            self._micro += point == "reads data"
            self._number += 1
            position = (_CODE_BY_NAME[phase], _CODE_BY_NAME[point], self._step, self._first, self._micro)
            _PAGE_STRUCT.pack_into(self._page, 0, self._number, *position, time.monotonic(), self._number)

    def at(self, point: Point) -> None:
        """Record the point within the step, by writing one byte.

        Between two beats of a step the processor's caches are full of torch's data, so a full beat
        takes ten times as long as it seems.
        """
        if self._page is not None:
            self._page[_POINT_OFFSET] = _CODE_BY_NAME[point]

    def answer(self, text: str) -> None:
        """Answer the parent's TRACE_SIGNAL with one line, beside the stacks."""
        if self._stacks is not None:
            os.write(self._stacks, f"{TRACE_PREFIX}{text}\n".encode(errors="replace"))

    def each(self, phase: Phase, items: Iterable[T]) -> Iterator[T]:
        """Yield the same items, with a beat before each one and after the last."""
        for item in items:
            self.beat(phase)
            yield item
        self.beat(phase)


class HeartbeatChannel:
    """The parent's side of one rank: its heartbeat page, and a file in memory for its stacks.

    Reading them needs no disk, no GIL of the rank and no answer from it.
    """

    def __init__(self) -> None:
        self.page, self.stacks = os.memfd_create("pulse"), os.memfd_create("stacks")
        os.truncate(self.page, PAGE_SIZE_BYTES)
        self._map = mmap.mmap(self.page, PAGE_SIZE_BYTES, access=mmap.ACCESS_READ)
        self._last: HeartbeatRecord | None = None

    @property
    def variable(self) -> str:
        """The value of HEARTBEAT_VARIABLE for the rank."""
        return f"{self.page}:{self.stacks}"

    def read(self) -> HeartbeatRecord | None:
        """The rank's last complete beat; None before its first."""
        # What is written last is read first: both numbers are equal unless the rank writes meanwhile.
        (back,) = _BACK_STRUCT.unpack_from(self._map, _FRONT_STRUCT.size + _BODY_STRUCT.size)
        phase, point, *steps, micro, at = _BODY_STRUCT.unpack_from(self._map, _FRONT_STRUCT.size)
        (front,) = _FRONT_STRUCT.unpack_from(self._map, 0)
        if front == back != 0:
            step, first = (None if value == NO_STEP else value for value in steps)
            self._last = HeartbeatRecord(
                number=back, phase=PHASES[phase], point=POINTS[point], step=step, first=first, micro=micro, at=at
            )
        return self._last

    def close(self) -> None:
        """Call this when the rank has ended."""
        self._map.close()
        os.close(self.page)
        os.close(self.stacks)


def attach_heartbeat(environ: Mapping[str, str]) -> Heartbeat:
    """In the rank, map the parent's page, and answer DUMP_SIGNAL with the stacks of all threads.

    Python's handler for that is C code that needs no lock. Only forked data workers inherit the
    descriptors. A SIGINT that `start_rank` has held back until now is delivered.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    try:
        page, stacks = (int(part) for part in environ.get(HEARTBEAT_VARIABLE, "").split(":"))
        mapped = mmap.mmap(page, PAGE_SIZE_BYTES)
        faulthandler.register(DUMP_SIGNAL, file=stacks, all_threads=True, chain=False)
    except (ValueError, OSError):  # nobody watches, or another process set the variable
        return Heartbeat()
    os.set_inheritable(stacks, False)
    os.close(page)
    heartbeat = Heartbeat(mapped, stacks)
    heartbeat.beat("start")
    return heartbeat
