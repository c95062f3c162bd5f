"""ResourceMonitor measures the ranks that ask for it, in one thread of their parent.

It writes the resource figures to each rank's page of shared memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from entrypoint import monitor_gpus, monitor_ranks
from entrypoint.gauges import ResourcePage
from entrypoint.machine import import_pynvml

MIN_INTERVAL_S: Final = 0.05  # between two measurements
REQUEST_POLL_INTERVAL_S: Final = 0.25  # between two checks for a request
STOP_TIMEOUT_S: Final = 0.2  # to wait for the thread
NEVER_MEASURED: Final = -1.0


@dataclass(slots=True)
class MonitoredRank:
    """One rank: its process and its page of shared memory.

    Its meters start when it requests them.
    """

    pid: int
    page: ResourcePage
    process: monitor_ranks.ProcessMeter | None = None
    gpus: list[monitor_gpus.GpuMeter | None] = field(default_factory=list)
    measured_at: float = NEVER_MEASURED


class ResourceMonitor:
    """Measures the ranks in a thread that calls NVML only on a rank's request.

    Nobody waits long for the thread: if the driver hangs, it is abandoned, and the pages keep the
    last figures.
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
        self._ranks, self._every_s, self._visible_devices = ranks, max(every_s, MIN_INTERVAL_S), visible_devices
        self._load_nvml, self._clock = nvml or import_pynvml, clock
        self._nvml: Any = None
        self._devices: tuple[monitor_gpus.GpuDevice, ...] | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="monitor")

    def start(self) -> None:
        """Start the thread if there are ranks to measure.

        Do nothing if the system has no thread left.
        """
        with suppress(RuntimeError):
            if self._ranks:
                self._thread.start()

    def stop(self) -> None:
        """End the thread, at once unless the driver hangs.

        The next start must not fork beside it.
        """
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT_S)

    def measure(self, rank: MonitoredRank) -> None:
        """Measure one rank, if it has requested that and the interval has passed."""
        now = self._clock()
        if rank.process is None:
            if (gpus := rank.page.requested_gpus()) is None:
                return
            rank.process = monitor_ranks.ProcessMeter(rank.pid, seconds=now)
            rank.gpus = self._create_gpu_meters(gpus)
        elif now - rank.measured_at < self._every_s:
            return
        elapsed = 0.0 if rank.measured_at == NEVER_MEASURED else now - rank.measured_at
        rank.measured_at = now
        figures = list(rank.process.measure(now))
        for meter in rank.gpus:
            figures += meter.measure(elapsed) if meter else monitor_gpus.UNKNOWN_FIGURES
        rank.page.write(figures)

    def _run(self) -> None:
        while not self._stopped.wait(min(self._every_s, REQUEST_POLL_INTERVAL_S)):
            for rank in self._ranks:
                with suppress(Exception):  # of any type: a measurement must never end a run
                    self.measure(rank)

    def _create_gpu_meters(self, uuids: Sequence[str]) -> list[monitor_gpus.GpuMeter | None]:
        """A meter for each requested GPU; None for one that NVML does not show."""
        if not uuids:
            return []
        if self._devices is None:
            self._devices = ()
            with suppress(Exception):  # no package, no library, no driver
                self._nvml = self._load_nvml()
                self._nvml.nvmlInit()
                self._devices = tuple(monitor_gpus.list_devices(self._nvml))
        devices = monitor_gpus.select_devices(self._devices, uuids, self._visible_devices)
        return [monitor_gpus.GpuMeter(self._nvml, device) if device else None for device in devices]
