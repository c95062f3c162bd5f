"""A ProcessMeter reads CPU time and memory of a rank and all its descendants from /proc.

psutil (7.2) has no peak memory (VmHWM), and lists descendants by reading every process of the node:
0.81 ms with 135 processes, `stacks.descendant_pids` 0.02 ms.
"""

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
# utime, stime, cutime and cstime, counted from the state in /proc/PID/stat.
_CPU_TIME_FIELDS: Final = slice(11, 15)
_MEMORY_LINE: Final = re.compile(r"^(VmHWM|VmRSS):\s+(\d+) kB$", re.M)


class ProcessMeter:
    """Measures one rank's process and its descendants.

    It does not read smaps, because that takes the lock that the process needs to allocate memory.
    Of a descendant (a data worker) only the growth of its own pages since it was first seen counts:
    a forked process starts with its parent's pages, and no other file tells which of them it still
    shares.
    """

    def __init__(
        self,
        pid: int,
        proc: Path = PROC,
        below: Callable[[int], list[int]] = stacks.descendant_pids,
        seconds: float = 0.0,
    ) -> None:
        """Start measuring. seconds: the time now."""
        self._pid, self._proc, self._descendant_pids = pid, proc, below
        self._started_s, self._initial_cpu_s = seconds, self._cpu_seconds(below(pid))
        self._initial_bytes: dict[int, int] = {}
        self._peak_bytes = 0
        self._last_figures: tuple[float, ...] = (0.0, 0.0, math.nan, math.nan)
        self.measure(seconds)

    def measure(self, seconds: float) -> tuple[float, ...]:
        """The figures of gauges.PROCESS_FIELDS; the last ones again if the rank has ended."""
        descendants = self._descendant_pids(self._pid)
        cpu_s, (resident, peak) = self._cpu_seconds(descendants), self._memory()
        if resident:
            total = resident + sum(map(self._grown_bytes, descendants))
            self._peak_bytes = max(self._peak_bytes, peak, total)
            cpu_used_s = max(
                self._last_figures[1], cpu_s - self._initial_cpu_s
            )  # never falls, even if a descendant ended unseen
            self._last_figures = (seconds - self._started_s, cpu_used_s, float(total), float(self._peak_bytes))
        return self._last_figures

    def _cpu_seconds(self, descendants: list[int]) -> float:
        return sum(self._ticks(pid) for pid in (self._pid, *descendants)) / CLOCK_TICKS_PER_S

    def _ticks(self, pid: int) -> int:
        with suppress(OSError, ValueError):
            return sum(
                map(int, (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[_CPU_TIME_FIELDS])
            )
        return 0

    def _memory(self) -> tuple[int, int]:
        """Bytes of the rank itself: resident now, and its peak; 0 once it has ended."""
        with suppress(OSError):
            fields = dict(_MEMORY_LINE.findall((self._proc / str(self._pid) / "status").read_text()))
            return int(fields.get("VmRSS", 0)) * 1024, int(fields.get("VmHWM", 0)) * 1024
        return 0, 0

    def _grown_bytes(self, pid: int) -> int:
        """Bytes by which a descendant's own pages have grown since it was first seen."""
        with suppress(OSError, ValueError):
            _, resident, shared, *_ = map(int, (self._proc / str(pid) / "statm").read_text().split())
            own = (resident - shared) * PAGE_SIZE_BYTES
            return max(0, own - self._initial_bytes.setdefault(pid, own))
        return 0
