"""A ResourceMonitor measures a rank, its data workers and its GPUs in a thread of the rank.

The thread waits for the driver alone: NVML is called without Python's lock, so a driver that hangs holds up no
training, and the last figures stay.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from entrypoint import stacks
from entrypoint.accelerators import nvidia
from entrypoint.files import StrPath, process_stat, read_text
from entrypoint.threads import start_daemon_thread

# Of the rank's process and its descendants, since the first measurement. Sums only grow, so the difference of any two
# readings is what was used in between. memory_bytes: the latest value.
PROCESS_FIELDS: Final = ("seconds", "cpu_seconds", "memory_bytes", "memory_peak_bytes")
GPU_FIELDS: Final = nvidia.GPU_FIELDS  # of each of its GPUs
MIN_INTERVAL_S: Final = 0.05  # between two measurements
CLOCK_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
PAGE_SIZE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
# utime, stime, cutime and cstime, counted from the state in /proc/PID/stat.
_CPU_TIME_FIELDS: Final = slice(11, 15)
_MEMORY_LINE: Final = re.compile(r"^(VmHWM|VmRSS):\s+(\d+) kB$", re.M)


class ProcessMeter:
    """Measures one rank's process and its descendants.

    psutil (7.2) has no peak memory (VmHWM), and lists descendants by reading every process of the node: 0.81 ms with
    135 processes, `stacks.descendant_pids` 0.02 ms.

    It does not read smaps, because that takes the lock that the process needs to allocate memory.
    Of a descendant (a data worker) only the growth of its own pages since it was first seen counts:
    a forked process starts with its parent's pages, and no other file tells which of them it still
    shares.
    """

    def __init__(
        self,
        pid: int,
        proc: StrPath = "/proc",
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
        """The figures of PROCESS_FIELDS; the last ones again if the rank has ended."""
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
        stats = (process_stat(self._proc, str(pid)) for pid in (self._pid, *descendants))
        return sum(int(ticks) for stat in stats for ticks in stat[_CPU_TIME_FIELDS]) / CLOCK_TICKS_PER_S

    def _memory(self) -> tuple[int, int]:
        """Bytes of the rank itself: resident now, and its peak; 0 once it has ended."""
        fields = dict(_MEMORY_LINE.findall(read_text(self._proc, f"{self._pid}/status")))
        return int(fields.get("VmRSS", 0)) * 1024, int(fields.get("VmHWM", 0)) * 1024

    def _grown_bytes(self, pid: int) -> int:
        """Bytes by which a descendant's own pages have grown since it was first seen."""
        _, resident, shared, *_ = map(int, read_text(self._proc, f"{pid}/statm").split() or (0, 0, 0))
        own = (resident - shared) * PAGE_SIZE_BYTES
        return max(0, own - self._initial_bytes.setdefault(pid, own))


class ResourceMonitor:
    """The newest figures of this process and its GPUs, from the call of `start` on; NaN before it."""

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        load_nvml: Callable[[], Any] = nvidia.import_pynvml,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._visible_devices = environ.get(nvidia.VISIBLE_VARIABLE)
        self._load_nvml, self._clock = load_nvml, clock
        self._gpu_uuids: Sequence[str] = ()
        self._nvml: Any = None
        self._process: ProcessMeter | None = None
        self._gpus: list[nvidia.GpuMeter | None] = []
        self._figures: tuple[float, ...] = ()
        self._measured_at, self._stopped = 0.0, threading.Event()

    def start(self, gpu_uuids: Sequence[str], every_s: float) -> None:
        """Measure every `every_s` seconds, this process and the GPUs with these UUIDs, which are in CUDA's form.

        Do nothing if the system has no thread left.
        """
        self._gpu_uuids = gpu_uuids
        with suppress(Exception):  # without the package no GPU is measured
            # Not in the thread: data workers are forked, and a lock of an import would stay locked in them.
            self._nvml = self._load_nvml() if gpu_uuids else None
        with suppress(RuntimeError):
            start_daemon_thread(lambda: self._run(max(every_s, MIN_INTERVAL_S)))

    def stop(self) -> None:
        """Measure no more."""
        self._stopped.set()

    def measure(self) -> None:
        """Measure once."""
        seconds, before = self._clock(), self._measured_at
        if self._process is None:
            self._process, before = ProcessMeter(os.getpid(), seconds=seconds), seconds
            self._gpus = [None] * len(self._gpu_uuids)
            with suppress(Exception):  # no library, no driver
                self._gpus = nvidia.open_meters(self._nvml, self._gpu_uuids, self._visible_devices)
        self._measured_at = seconds
        figures = list(self._process.measure(seconds))
        for gpu in self._gpus:
            figures += gpu.measure(seconds - before) if gpu else (math.nan,) * len(GPU_FIELDS)
        self._figures = tuple(figures)

    def read(self) -> tuple[float, ...]:
        """The newest figures: PROCESS_FIELDS, then GPU_FIELDS for each of the rank's GPUs."""
        return self._figures or (math.nan,) * num_fields(len(self._gpu_uuids))

    def _run(self, every_s: float) -> None:
        while True:
            with suppress(Exception):  # of any type: a measurement must never end a run
                self.measure()
            if self._stopped.wait(every_s):
                return


def num_fields(gpus: int) -> int:
    """The number of figures of a rank with so many GPUs."""
    return len(PROCESS_FIELDS) + gpus * len(GPU_FIELDS)
