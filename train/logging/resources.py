"""This module measures, computes and formats what each GPU and each rank consumes.

It covers utilization, memory, energy, CPU time and throttling, from values that all ranks sum at a
log point.
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from types import MappingProxyType
from typing import Any, Final

import torch

from entrypoint import PrintableText, ResourceMonitor, monitor, to_printable
from train.distributed.device import gpu_uuid
from train.distributed.runtime import Runtime
from train.logging.metrics_logger import EventLabels, MetricsLogger

TORCH_MEMORY_KEYS: Final = ("torch_allocated_bytes", "torch_reserved_bytes")  # peaks of the training; NaN on a CPU
THROTTLE_REASONS: Final[Mapping[str, str]] = {
    "hot_s": "too hot",
    "brake_s": "power brake",
    "slow_s": "slowed by the hardware",
    "cap_s": "at its power limit",
}
UsageValues = Mapping[str, float]
UsageEvent = tuple[str, EventLabels, dict[str, Any]]  # as MetricsLogger.write_each takes it


@dataclass(frozen=True, slots=True, kw_only=True)
class RankUsage:
    """What one rank has consumed since training began.

    process: by monitor.PROCESS_FIELDS and TORCH_MEMORY_KEYS. gpus: by monitor.GPU_FIELDS.
    """

    number: int
    host: str
    process: UsageValues
    gpus: tuple[UsageValues, ...]


def values_per_rank(gpus: int) -> int:
    """The number of values of a rank with so many GPUs."""
    return monitor.num_fields(gpus) + len(TORCH_MEMORY_KEYS)


def place_among_ranks(values: Sequence[float], *, rank: int, ranks: int) -> list[float]:
    """This rank's values at its position, and zeros elsewhere: the sum over all ranks holds every rank's values."""
    size = len(values)
    return [0.0] * (size * rank) + [*values] + [0.0] * (size * (ranks - rank - 1))


def split_by_rank(everyone: Sequence[float], *, hosts: Sequence[str], gpus: int) -> tuple[RankUsage, ...]:
    """Split the sum over all ranks by rank. hosts: of each rank. gpus: the number per rank."""
    size = values_per_rank(gpus)
    rows = [everyone[at : at + size] for at in range(0, len(everyone), size)]
    return tuple(_parse_rank_usage(number, hosts[number], row) for number, row in enumerate(rows))


def _parse_rank_usage(number: int, host: str, row: Sequence[float]) -> RankUsage:
    process, torch = row[: len(monitor.PROCESS_FIELDS)], row[-len(TORCH_MEMORY_KEYS) :]
    rest = row[len(monitor.PROCESS_FIELDS) : -len(TORCH_MEMORY_KEYS)]
    size = len(monitor.GPU_FIELDS)
    gpus = [rest[at : at + size] for at in range(0, len(rest), size)]
    own = dict(zip(monitor.PROCESS_FIELDS, process, strict=True)) | dict(zip(TORCH_MEMORY_KEYS, torch, strict=True))
    return RankUsage(
        number=number,
        host=host,
        process=own,
        gpus=tuple(dict(zip(monitor.GPU_FIELDS, gpu, strict=True)) for gpu in gpus),
    )


def rank_events(current: Sequence[RankUsage], before: Sequence[RankUsage] = ()) -> list[UsageEvent]:
    """What each rank consumed since `before`, without ranks that were not measured since then."""
    return [
        (str(rank.number), {"rank": rank.number, "host": rank.host}, _process_values(rank.process, earlier.process))
        for rank, earlier in _measured_since(current, before)
    ]


def gpu_events(current: Sequence[RankUsage], before: Sequence[RankUsage] = ()) -> list[UsageEvent]:
    """What each GPU that NVML shows consumed since `before`."""
    return [
        (gpu_name(rank, gpu), {"gpu": gpu_name(rank, gpu)}, _gpu_values(gpu, gpu_before))
        for rank, earlier in _measured_since(current, before)
        for gpu, gpu_before in zip(rank.gpus, earlier.gpus, strict=True)
        if not math.isnan(gpu["index"])
    ]


def _measured_since(current: Sequence[RankUsage], before: Sequence[RankUsage]) -> Iterator[tuple[RankUsage, RankUsage]]:
    """Each rank that was measured since `before`, which may be empty, and what it had consumed then."""
    nothing = [replace(rank, process={}, gpus=({},) * len(rank.gpus)) for rank in current]
    for rank, earlier in zip(current, before or nothing, strict=True):
        if increase_since(rank.process, earlier.process, "seconds") > 0:  # False for NaN
            yield rank, earlier


def gpu_name(rank: RankUsage, gpu: UsageValues) -> str:
    """node01/0, or node01/0:1 for a MIG instance."""
    instance = "" if math.isnan(gpu["instance"]) else f":{gpu['instance']:.0f}"
    return f"{rank.host}/{gpu['index']:.0f}{instance}"


def mean_rate(current: UsageValues, total: str, seconds: str, before: UsageValues = MappingProxyType({})) -> float:
    """By how much a sum has grown per second; NaN if it was not measured."""
    passed = increase_since(current, before, seconds)
    return increase_since(current, before, total) / passed if passed > 0 else math.nan


def increase_since(current: UsageValues, before: UsageValues, key: str) -> float:
    """By how much a sum has grown."""
    earlier = before.get(key, 0.0)
    return current[key] - (0.0 if math.isnan(earlier) else earlier)


def _process_values(current: UsageValues, before: UsageValues) -> dict[str, Any]:
    values = {"cpu_cores": round(mean_rate(current, "cpu_seconds", "seconds", before), 3)}
    memory = {key: _round_or_none(current[key]) for key in ("memory_bytes", *TORCH_MEMORY_KEYS)}
    return values | {key: value for key, value in memory.items() if key not in TORCH_MEMORY_KEYS or value is not None}


def _gpu_values(current: UsageValues, before: UsageValues) -> dict[str, Any]:
    values = {
        "utilisation_percent": round(mean_rate(current, "busy", "busy_s", before), 1),
        "memory_bytes": _round_or_none(current["memory_bytes"]),
        "power_w": round(mean_rate(current, "energy_j", "energy_s", before), 1),
        "temperature_c": _round_or_none(current["temperature_c"]),
    }
    low = [words for key, words in THROTTLE_REASONS.items() if increase_since(current, before, key) > 0]
    return values | ({"throttled": low} if low else {})


def _round_or_none(value: float) -> int | None:
    return round(value) if math.isfinite(value) else None


MIN_REPORTED_THROTTLING: Final = 0.05  # share of the time at a lower clock; less is not reported
THROTTLE_FIXES: Final[Mapping[str, str]] = {
    "hot_s": "look at its cooling (nvidia-smi -q -d TEMPERATURE), or leave that node out",
    "brake_s": "the node's power supply asks for less: tell its administrator, or leave that node out",
    "slow_s": "nvidia-smi -q -d PERFORMANCE says why; or leave that node out",
    "cap_s": "none, where the limit is the GPU's own; nvidia-smi -q -d POWER shows whether somebody lowered it",
}
JOULES_PER_WH: Final = 3600.0
# The last measurement may be one interval old, while all images count: after 20, at most a twentieth is missing.
MIN_SAMPLES_FOR_ENERGY: Final = 20
KWH_THRESHOLD_WH: Final = 10_000  # more is given in kWh


def usage_rows(ranks: Sequence[RankUsage], images: int, every_s: float = 0.0) -> dict[str, str]:
    """Lines of the summary, for what was measured.

    images: trained on meanwhile. every_s: seconds between two measurements.
    """
    totals = usage_totals(ranks, images, every_s)
    rows = {
        "GPU use": _format_gpu_use(ranks),
        "GPU memory": _format_gpu_memory(ranks),
        "energy": _format_energy(totals, images, every_s),
        "throttled": _format_throttling(ranks),
        "CPU use": f"{totals['cpu_cores']:.1f} cores per rank on average" if "cpu_cores" in totals else "",
        "memory": _format_memory(ranks),
    }
    return {key: words for key, words in rows.items() if words}


def usage_totals(ranks: Sequence[RankUsage], images: int, every_s: float = 0.0) -> dict[str, Any]:
    """The same as numbers, without what was not measured.

    Energy per image needs MIN_SAMPLES_FOR_ENERGY measurements.
    """
    gpus = [gpu for rank in ranks for gpu in rank.gpus]
    joules = [gpu["energy_j"] for gpu in gpus if gpu["energy_s"] > 0]
    # NaN if a GPU was not measured: the sum would be too low.
    wh = sum(joules) / JOULES_PER_WH if gpus and len(joules) == len(gpus) else math.nan
    seconds = _max_known(rank.process["seconds"] for rank in ranks)
    totals = {
        "seconds": seconds,
        "gpu_utilisation_percent": _mean_known(mean_rate(gpu, "busy", "busy_s") for gpu in gpus),
        "gpu_memory_peak_bytes": _max_known(gpu["memory_peak_bytes"] for gpu in gpus),
        "wh": wh,
        "wh_per_1000_images": wh / images * 1000
        if images and seconds >= MIN_SAMPLES_FOR_ENERGY * every_s
        else math.nan,
        "cpu_cores": _mean_known(mean_rate(rank.process, "cpu_seconds", "seconds") for rank in ranks),
        "memory_peak_bytes": _max_known(rank.process["memory_peak_bytes"] for rank in ranks),
        **{key: _max_known(rank.process[key] for rank in ranks) for key in TORCH_MEMORY_KEYS},
    }
    rounded = {
        key: round(value) if key.endswith("_bytes") else _round_significant(value)
        for key, value in totals.items()
        if not math.isnan(value)
    }
    low = {THROTTLE_REASONS[key]: _round_significant(share) for key, (share, _) in _worst_throttling(ranks).items()}
    return rounded | ({"throttled": low} if low else {})


def format_memory(number: float) -> str:
    """1.2 GiB, 340 MiB."""
    return f"{number / 2**30:,.1f} GiB" if number >= 2**30 else f"{number / 2**20:,.0f} MiB"


def _format_gpu_use(ranks: Sequence[RankUsage]) -> str:
    shares = {gpu_name(rank, gpu): mean_rate(gpu, "busy", "busy_s") for rank in ranks for gpu in rank.gpus}
    measured = {name: share for name, share in shares.items() if not math.isnan(share)}
    if not measured:
        return ""
    least = min(measured, key=lambda name: measured[name])
    lowest = f", lowest {measured[least]:.0f} % ({least})" if len(measured) > 1 else ""
    return f"{fmean(measured.values()):.0f} % of the time on average{lowest}"


def _format_gpu_memory(ranks: Sequence[RankUsage]) -> str:
    measured = [(rank, gpu) for rank in ranks for gpu in rank.gpus if not math.isnan(gpu["memory_peak_bytes"])]
    if not measured:
        return ""
    most, gpu = max(measured, key=lambda pair: pair[1]["memory_peak_bytes"])
    own = _max_known(rank.process[TORCH_MEMORY_KEYS[0]] for rank in ranks)
    tensors = "" if math.isnan(own) else f"; torch's tensors up to {format_memory(own)}"
    peak, total = format_memory(gpu["memory_peak_bytes"]), format_memory(gpu["memory_total_bytes"])
    return f"up to {peak} of {total} ({gpu_name(most, gpu)}){tensors}"


def _format_energy(totals: Mapping[str, Any], images: int, every_s: float) -> str:
    if "wh" not in totals:
        return ""
    wh, each = totals["wh"], ""
    if "wh_per_1000_images" in totals:
        each = f", {_format_significant(totals['wh_per_1000_images'], 3)} Wh per 1,000 images"
    elif images:
        each = f" (per image: only from {MIN_SAMPLES_FOR_ENERGY * every_s:g} s of training on)"
    energy = f"{_format_significant(wh, 4)} Wh" if wh < KWH_THRESHOLD_WH else f"{_format_significant(wh / 1000, 4)} kWh"
    return f"{energy} of the GPUs{each}"


def _format_significant(value: float, number: int) -> str:
    """So many significant digits, without a positive exponent: `g` alone would write 1.3e+05."""
    rounded = float(f"{value:.{number}g}")
    return f"{rounded:,.0f}" if rounded >= 1000 else f"{rounded:.{number}g}"


def _format_throttling(ranks: Sequence[RankUsage]) -> str:
    worst = {
        key: (share, who) for key, (share, who) in _worst_throttling(ranks).items() if share > MIN_REPORTED_THROTTLING
    }
    lines = [
        f"{who}: {THROTTLE_REASONS[key]} {100 * share:.0f} % of the time. fix: {THROTTLE_FIXES[key]}"
        for key, (share, who) in worst.items()
    ]
    return PrintableText(f"\n{' ' * 15}".join(map(to_printable, lines)))


def _format_memory(ranks: Sequence[RankUsage]) -> str:
    measured = [rank for rank in ranks if not math.isnan(rank.process["memory_peak_bytes"])]
    if not measured:
        return ""
    most = max(measured, key=lambda rank: rank.process["memory_peak_bytes"])
    where = f" (rank {most.number} on {most.host})" if len(ranks) > 1 else ""
    return f"up to {format_memory(most.process['memory_peak_bytes'])} per rank{where}"


def _worst_throttling(ranks: Sequence[RankUsage]) -> dict[str, tuple[float, str]]:
    """For each reason of a low clock: the highest share of the time, and the GPU's name."""
    shares = {
        key: [
            (share, gpu_name(rank, gpu))
            for rank in ranks
            for gpu in rank.gpus
            if (share := mean_rate(gpu, key, "reasons_s")) > 0
        ]
        for key in THROTTLE_REASONS
    }
    return {key: max(pairs) for key, pairs in shares.items() if pairs}


def _max_known(numbers: Iterable[float]) -> float:
    return max((number for number in numbers if not math.isnan(number)), default=math.nan)


def _mean_known(numbers: Iterable[float]) -> float:
    measured = [number for number in numbers if not math.isnan(number)]
    return fmean(measured) if measured else math.nan


def _round_significant(value: float) -> float:
    return float(f"{value:.4g}")


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
        resources: ResourceMonitor | None = None,
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
        self._resources, self._rank, self._hosts = resources, rank, hosts
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
        measured = self._resources.read() if self._resources else [math.nan] * monitor.num_fields(len(self._devices))
        values = (*measured, *own)
        return place_among_ranks(values, rank=self._rank, ranks=len(self._hosts))

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
        if self._resources:
            self._resources.stop()
        if self._rank == 0 and self._newest:
            self._log(metrics, step)
            if totals := usage_totals(self._logged, images, self._look_s):
                metrics.write("usage", step=step, images=images, **totals)

    def summary_rows(self, images: int) -> dict[str, str]:
        """The rows of the run's summary."""
        return usage_rows(self._everyone(), images, self._look_s)

    def _log(self, metrics: MetricsLogger, step: int) -> None:
        current = self._everyone()
        metrics.write_each("gpu", step=step, of=gpu_events(current, self._logged))
        metrics.write_each("rank", step=step, of=rank_events(current, self._logged))
        self._logged, self._logged_at = current, self._clock()

    def _everyone(self) -> tuple[RankUsage, ...]:
        return split_by_rank(self._newest, hosts=self._hosts, gpus=len(self._devices))


NO_USAGE_RECORDER: Final = UsageRecorder()


def start_usage_recorder(
    runtime: Runtime, resources: ResourceMonitor | None, every_s: float | None, *, trained_s: float = 0.0
) -> UsageRecorder:
    """Measure this rank from now on. All ranks call it. Without a monitor or a time nothing is measured."""
    if resources is None or every_s is None:
        return NO_USAGE_RECORDER
    devices = compute_devices(runtime)
    for device in devices:
        torch.cuda.reset_peak_memory_stats(device)  # the search for a micro batch may have used all memory
    resources.start([gpu_uuid(device) for device in devices], every_s)
    hosts = runtime.all_gather(socket.gethostname().split(".")[0])
    return UsageRecorder(
        resources, rank=runtime.world.rank, hosts=hosts, devices=devices, every_s=every_s, trained_s=trained_s
    )


def compute_devices(runtime: Runtime) -> tuple[torch.device, ...]:
    """The GPUs that this rank computes on. With DataParallel, a single rank uses all that it sees."""
    if runtime.device.type == "cpu":
        return ()
    several = range(torch.cuda.device_count()) if runtime.parallel == "dp" else ()
    return tuple(torch.device("cuda", index) for index in several) or (runtime.device,)
