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
from train.distributed.runtime import Runtime
from train.logging import resources
from train.logging.metrics import MetricsLogger
from train.logging.resources import RankUsage

MAX_RANKS_AT_FULL_RATE: Final = (
    16  # ranks: of more each is told of less often, so that the record does not grow with the world
)


class UsageRecorder:
    """One start's. No exchange of its own, and nothing that waits for a GPU: torch counts its memory on the host."""

    def __init__(
        self,
        page: gauges.ResourceReader | None = None,
        *,
        rank: int = 0,
        hosts: Sequence[str] = (),
        devices: Sequence[torch.device] = (),
        every_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """hosts: of all ranks; without any, nothing is measured. devices: of this rank, as many as others have."""
        self._page, self._rank, self._hosts = page or gauges.ResourceReader(), rank, hosts
        self._devices, self._every_s, self._clock = (
            devices,
            every_s * max(1.0, len(hosts) / MAX_RANKS_AT_FULL_RATE),
            clock,
        )
        self._look_s, self._told_at = every_s, clock()
        self._newest: Sequence[float] = ()
        self._told: tuple[RankUsage, ...] = ()

    def values_to_sum(self) -> list[float]:
        """This rank's values, for an all-reduce that sums them over all ranks."""
        if not self._hosts:
            return []
        allocated = [torch.cuda.max_memory_allocated(device) for device in self._devices]
        reserved = [torch.cuda.max_memory_reserved(device) for device in self._devices]
        own = [float(max(most)) if most else math.nan for most in (allocated, reserved)]
        mine = (*self._page.read(len(self._devices)), *own)
        return resources.place_among_ranks(mine, rank=self._rank, ranks=len(self._hosts))

    def receive(self, everyone: Sequence[float], *, trained: bool = True) -> None:
        """Keep the sums over all ranks until `log`; before the first step there is nothing to log."""
        if trained or self._newest:
            self._newest = everyone or self._newest

    def log(self, metrics: MetricsLogger, step: int) -> None:
        """On rank 0, once it is time: a line for each GPU and each rank."""
        if self._rank == 0 and self._newest and self._clock() - self._told_at >= self._every_s:
            self._log(metrics, step)

    def finish(self, metrics: MetricsLogger, step: int, images: int) -> None:
        """The last lines, and what it came to. images: that this start has trained on."""
        if self._rank == 0 and self._newest:
            self._log(metrics, step)
            if found := resources.usage_totals(self._told, images, self._look_s):
                metrics.write("usage", step=step, images=images, **found)

    def summary_rows(self, images: int) -> dict[str, str]:
        """For the summary."""
        return resources.usage_rows(self._everyone(), images, self._look_s)

    def _log(self, metrics: MetricsLogger, step: int) -> None:
        now = self._everyone()
        metrics.write_each("gpu", step=step, of=resources.gpu_events(now, self._told))
        metrics.write_each("rank", step=step, of=resources.rank_events(now, self._told))
        self._told, self._told_at = now, self._clock()

    def _everyone(self) -> tuple[RankUsage, ...]:
        return resources.split_by_rank(self._newest, hosts=self._hosts, gpus=len(self._devices))


NO_USAGE_RECORDER: Final = UsageRecorder()


def start_usage_recorder(runtime: Runtime, page: gauges.ResourceReader, every_s: float | None) -> UsageRecorder:
    """Let this rank's parent measure from now on. To be called by all ranks. every_s: None for not at all."""
    if every_s is None:
        return NO_USAGE_RECORDER
    devices = compute_devices(runtime)
    for device in devices:
        torch.cuda.reset_peak_memory_stats(device)  # trials of a micro batch may have taken all there is
    page.ask([str(torch.cuda.get_device_properties(device).uuid) for device in devices])
    hosts = runtime.all_gather(socket.gethostname().split(".")[0])
    return UsageRecorder(page, rank=runtime.world.rank, hosts=hosts, devices=devices, every_s=every_s)


def compute_devices(runtime: Runtime) -> tuple[torch.device, ...]:
    """The GPUs that this rank computes on: all that it sees with DataParallel, which is one rank alone."""
    if runtime.device.type == "cpu":
        return ()
    several = range(min(torch.cuda.device_count(), gauges.MAX_GPUS)) if runtime.parallel == "dp" else ()
    return tuple(torch.device("cuda", index) for index in several) or (runtime.device,)
