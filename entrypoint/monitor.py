"""ResourceMonitor measures the ranks that ask for it, in one thread of their parent.

It writes the figures to each rank's page of shared memory.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from entrypoint import monitor_gpus, monitor_ranks
from entrypoint.gauges import ResourcePage

MIN_INTERVAL_S: Final = 0.05  # between two looks
REQUEST_POLL_INTERVAL_S: Final = 0.25  # between two looks at whether a rank has asked
STOP_TIMEOUT_S: Final = 0.2  # for the thread to end
NEVER_MEASURED: Final = -1.0


def import_pynvml() -> Any:
    """NVML itself. Loaded in the thread, once a rank has a GPU."""
    return importlib.import_module("pynvml")


@dataclass(slots=True)
class MonitoredRank:
    """One rank: its process and the page between us. Its meters begin when it asks."""

    pid: int
    page: ResourcePage
    process: monitor_ranks.ProcessMeter | None = None
    gpus: list[monitor_gpus.GpuMeter | None] = field(default_factory=list)
    looked: float = NEVER_MEASURED


class ResourceMonitor:
    """Nothing waits long for the thread: a driver that hangs leaves it behind, and what it left on the pages stays.

    It begins after the ranks are started, and asks NVML for nothing before a rank asks it.
    """

    def __init__(
        self,
        ranks: Sequence[MonitoredRank],
        every_s: float,
        *,
        visible_devices: str | None = None,
        nvml: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ranks, self._every_s, self._visible = ranks, max(every_s, MIN_INTERVAL_S), visible_devices
        self._load, self._clock = nvml or import_pynvml, clock
        self._nvml: Any = None
        self._devices: tuple[monitor_gpus.GpuDevice, ...] | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="monitor")

    def start(self) -> None:
        """Begin, if there is anybody to measure; without a thread where the system has none left."""
        with suppress(RuntimeError):
            if self._ranks:
                self._thread.start()

    def stop(self) -> None:
        """Let the thread end, which takes no time where the driver answers: the next start is to fork without it."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)

    def look(self, rank: MonitoredRank) -> None:
        """Measure one rank, if it has asked and it is time."""
        now = self._clock()
        if rank.process is None:
            if (asked := rank.page.asked()) is None:
                return
            rank.process = monitor_ranks.ProcessMeter(rank.pid, seconds=now)
            rank.gpus = self._meters(asked)
        elif now - rank.looked < self._every_s:
            return
        passed = 0.0 if rank.looked == NEVER_MEASURED else now - rank.looked
        rank.looked = now
        figures = list(rank.process.look(now))
        for meter in rank.gpus:
            figures += meter.look(passed) if meter else monitor_gpus.UNKNOWN_FIGURES
        rank.page.write(figures)

    def _run(self) -> None:
        while not self._over.wait(min(self._every_s, REQUEST_POLL_INTERVAL_S)):
            for rank in self._ranks:
                with suppress(Exception):  # whatever it is: a measurement is never why a run ends
                    self.look(rank)

    def _meters(self, asked: Sequence[str]) -> list[monitor_gpus.GpuMeter | None]:
        """None for a GPU that NVML does not show."""
        if not asked:
            return []
        if self._devices is None:
            self._devices = ()
            with suppress(Exception):  # no package, no library, no driver
                self._nvml = self._load()
                self._nvml.nvmlInit()
                self._devices = tuple(monitor_gpus.list_devices(self._nvml))
        found = monitor_gpus.select_devices(self._devices, asked, self._visible)
        return [monitor_gpus.GpuMeter(self._nvml, device) if device else None for device in found]
