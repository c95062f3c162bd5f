"""The usage recorder measures what a rank and its GPUs consume, and rank 0 records all ranks.

The values travel with the sums of a log point, so no additional all-reduce is needed.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

import torch

from entrypoint import gauges
from train.distributed.device import gpu_uuid
from train.distributed.runtime import Runtime
from train.logging import resources
from train.logging.metrics_logger import MetricsLogger
from train.logging.resources import RankUsage

MAX_RANKS_AT_FULL_RATE: Final = 16  # with more ranks each is logged less often, so that the file grows no faster
# A line covers at least this part of the run's time so far, so that the file of a week is not a thousand times as large
# as that of ten minutes: 5,500 lines of a GPU in five days, not 86,400.
MIN_SHARE_OF_TIME: Final = 0.001


class UsageRecorder:
    """Records the resource usage of one start.

    It exchanges nothing itself and never waits for a GPU: torch counts its memory on the host.
    """

    def __init__(
        self,
        page: gauges.ResourceReader | None = None,
        *,
        rank: int = 0,
        hosts: Sequence[str] = (),
        devices: Sequence[torch.device] = (),
        every_s: float = 0.0,
        trained_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """hosts: of all ranks; if empty, nothing is measured. devices: this rank's, as many as on other ranks.

        trained_s: seconds that earlier starts have trained.
        """
        self._page, self._rank, self._hosts = page or gauges.ResourceReader(), rank, hosts
        self._devices, self._clock = devices, clock
        self._rarity = max(1.0, len(hosts) / MAX_RANKS_AT_FULL_RATE)
        self._look_s, self._logged_at = every_s, clock()
        self._began_at = self._logged_at - trained_s
        self._newest: Sequence[float] = ()
        self._logged: tuple[RankUsage, ...] = ()

    def values_to_sum(self) -> list[float]:
        """This rank's values, for an all-reduce that sums them over all ranks."""
        if not self._hosts:
            return []
        allocated = [torch.cuda.max_memory_allocated(device) for device in self._devices]
        reserved = [torch.cuda.max_memory_reserved(device) for device in self._devices]
        own = [float(max(most)) if most else math.nan for most in (allocated, reserved)]
        values = (*self._page.read(len(self._devices)), *own)
        return resources.place_among_ranks(values, rank=self._rank, ranks=len(self._hosts))

    def receive(self, everyone: Sequence[float], *, trained: bool = True) -> None:
        """Keep the sums over all ranks until `log`; before the first step there is nothing to log."""
        if trained or self._newest:
            self._newest = everyone or self._newest

    def log(self, metrics: MetricsLogger, step: int) -> None:
        """On rank 0, if it is time, write a line for each GPU and each rank."""
        every_s = self._rarity * max(self._look_s, MIN_SHARE_OF_TIME * (self._clock() - self._began_at))
        if self._rank == 0 and self._newest and self._clock() - self._logged_at >= every_s:
            self._log(metrics, step)

    def finish(self, metrics: MetricsLogger, step: int, images: int) -> None:
        """Write the last lines, and the totals. images: that this start has trained on."""
        if self._rank == 0 and self._newest:
            self._log(metrics, step)
            if totals := resources.usage_totals(self._logged, images, self._look_s):
                metrics.write("usage", step=step, images=images, **totals)

    def summary_rows(self, images: int) -> dict[str, str]:
        """The rows of the run's summary."""
        return resources.usage_rows(self._everyone(), images, self._look_s)

    def _log(self, metrics: MetricsLogger, step: int) -> None:
        current = self._everyone()
        metrics.write_each("gpu", step=step, of=resources.gpu_events(current, self._logged))
        metrics.write_each("rank", step=step, of=resources.rank_events(current, self._logged))
        self._logged, self._logged_at = current, self._clock()

    def _everyone(self) -> tuple[RankUsage, ...]:
        return resources.split_by_rank(self._newest, hosts=self._hosts, gpus=len(self._devices))


NO_USAGE_RECORDER: Final = UsageRecorder()


def start_usage_recorder(
    runtime: Runtime, page: gauges.ResourceReader, every_s: float | None, *, trained_s: float = 0.0
) -> UsageRecorder:
    """Let this rank's parent process measure from now on. All ranks call it. every_s: None measures nothing."""
    if every_s is None:
        return NO_USAGE_RECORDER
    devices = compute_devices(runtime)
    for device in devices:
        torch.cuda.reset_peak_memory_stats(device)  # the search for a micro batch may have used all memory
    page.ask([gpu_uuid(device) for device in devices])
    hosts = runtime.all_gather(socket.gethostname().split(".")[0])
    return UsageRecorder(
        page, rank=runtime.world.rank, hosts=hosts, devices=devices, every_s=every_s, trained_s=trained_s
    )


def compute_devices(runtime: Runtime) -> tuple[torch.device, ...]:
    """The GPUs that this rank computes on. With DataParallel, a single rank uses all that it sees."""
    if runtime.device.type == "cpu":
        return ()
    several = range(min(torch.cuda.device_count(), gauges.MAX_GPUS)) if runtime.parallel == "dp" else ()
    return tuple(torch.device("cuda", index) for index in several) or (runtime.device,)
