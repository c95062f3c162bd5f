"""A ProcessMeter reads CPU time and memory of a rank and all its descendants from /proc."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from entrypoint import stacks

PROC: Final = Path("/proc")
CLOCK_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
PAGE_SIZE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_CPU_TIME_FIELDS: Final = slice(
    11, 15
)  # utime, stime, and those of ended children, counted from the state in /proc/PID/stat
_MEMORY_LINE: Final = re.compile(r"^(VmHWM|VmRSS):\s+(\d+) kB$", re.M)


class ProcessMeter:
    """One rank's process and those below it.

    Not by smaps: whoever reads it holds the lock that the process needs to take memory. So of a process below the rank
    (a data worker) what counts is by how much its own pages have grown since it was first seen: a fork begins with its
    parent's, and no other file tells which of these it still shares.
    """

    def __init__(
        self,
        pid: int,
        proc: Path = PROC,
        below: Callable[[int], list[int]] = stacks.descendant_pids,
        seconds: float = 0.0,
    ) -> None:
        """Measuring begins now, which is `seconds`."""
        self._pid, self._proc, self._below = pid, proc, below
        self._since, self._cpu = seconds, self._cpu_seconds(below(pid))
        self._inherited: dict[int, int] = {}
        self._peak = 0
        self._last: tuple[float, ...] = (0.0, 0.0, math.nan, math.nan)
        self.look(seconds)

    def look(self, seconds: float) -> tuple[float, ...]:
        """As in gauges.PROCESS_FIELDS; the last answer once more where the rank has ended."""
        below = self._below(self._pid)
        used, (now, peak) = self._cpu_seconds(below), self._memory()
        if now:
            whole = now + sum(map(self._grown, below))
            self._peak = max(self._peak, peak, whole)
            cpu = max(self._last[1], used - self._cpu)  # it never falls, whoever ended unseen
            self._last = (seconds - self._since, cpu, float(whole), float(self._peak))
        return self._last

    def _cpu_seconds(self, below: list[int]) -> float:
        return sum(self._ticks(pid) for pid in (self._pid, *below)) / CLOCK_TICKS_PER_S

    def _ticks(self, pid: int) -> int:
        with suppress(OSError, ValueError):
            return sum(
                map(int, (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[_CPU_TIME_FIELDS])
            )
        return 0

    def _memory(self) -> tuple[int, int]:
        """Bytes of the rank itself, now and at most; 0 once it has ended."""
        with suppress(OSError):
            found = dict(_MEMORY_LINE.findall((self._proc / str(self._pid) / "status").read_text()))
            return int(found.get("VmRSS", 0)) * 1024, int(found.get("VmHWM", 0)) * 1024
        return 0, 0

    def _grown(self, pid: int) -> int:
        """Bytes that a process below has taken since it was first seen."""
        with suppress(OSError, ValueError):
            _, resident, shared, *_ = map(int, (self._proc / str(pid) / "statm").read_text().split())
            own = (resident - shared) * PAGE_SIZE_BYTES
            return max(0, own - self._inherited.setdefault(pid, own))
        return 0
