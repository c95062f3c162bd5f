"""The figures of all ranks, as they come beside the sums of a log point, become what each GPU and rank has consumed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from entrypoint import gauges
from train.record.metrics import Labels

TORCH: Final = ("torch_allocated_bytes", "torch_reserved_bytes")  # the most since training began; NaN on a CPU
REASONS: Final[Mapping[str, str]] = {
    "hot_s": "too hot",
    "brake_s": "power brake",
    "slow_s": "slowed by the hardware",
    "cap_s": "at its power limit",
}
Figures = Mapping[str, float]
Told = tuple[str, Labels, dict[str, Any]]  # as Metrics.write_each takes it
NOTHING: Final[Figures] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rank:
    """One rank: its process by gauges.PROCESS and TORCH, its GPUs by gauges.GPU, since training began."""

    number: int
    host: str
    process: Figures
    gpus: tuple[Figures, ...]


def width(gpus: int) -> int:
    """How many numbers a rank with so many GPUs has."""
    return gauges.width(gpus) + len(TORCH)


def placed(mine: Sequence[float], *, rank: int, ranks: int) -> list[float]:
    """This rank's numbers among zeros where the others have theirs: the sum over all ranks is everyone's."""
    size = len(mine)
    return [0.0] * (size * rank) + [*mine] + [0.0] * (size * (ranks - rank - 1))


def parted(everyone: Sequence[float], *, hosts: Sequence[str], gpus: int) -> tuple[Rank, ...]:
    """The sum over all ranks, taken apart. hosts: of each rank; gpus: how many each has."""
    size = width(gpus)
    rows = [everyone[at : at + size] for at in range(0, len(everyone), size)]
    return tuple(_rank(number, hosts[number], row) for number, row in enumerate(rows))


def _rank(number: int, host: str, row: Sequence[float]) -> Rank:
    process, rest, torch = row[: len(gauges.PROCESS)], row[len(gauges.PROCESS) : -len(TORCH)], row[-len(TORCH) :]
    size = len(gauges.GPU)
    gpus = [rest[at : at + size] for at in range(0, len(rest), size)]
    own = dict(zip(gauges.PROCESS, process, strict=True)) | dict(zip(TORCH, torch, strict=True))
    return Rank(
        number=number, host=host, process=own, gpus=tuple(dict(zip(gauges.GPU, gpu, strict=True)) for gpu in gpus)
    )


def ranks(now: Sequence[Rank], before: Sequence[Rank] = ()) -> list[Told]:
    """What each rank consumed since `before`; left out where it was not measured since."""
    told: list[Told] = []
    for rank, earlier in _pairs(now, before):
        if _passed(rank, earlier):
            labels: Labels = {"rank": rank.number, "host": rank.host}
            told.append((str(rank.number), labels, _of_process(rank.process, earlier.process if earlier else NOTHING)))
    return told


def gpus(now: Sequence[Rank], before: Sequence[Rank] = ()) -> list[Told]:
    """The same of each GPU that NVML shows."""
    told: list[Told] = []
    for rank, earlier in _pairs(now, before):
        for number, gpu in enumerate(rank.gpus):
            if _passed(rank, earlier) and not math.isnan(gpu["index"]):
                called = name(rank, gpu)
                told.append((called, {"gpu": called}, _of_gpu(gpu, earlier.gpus[number] if earlier else NOTHING)))
    return told


def name(rank: Rank, gpu: Figures) -> str:
    """node01/0, or for an instance of MIG node01/0:1."""
    instance = "" if math.isnan(gpu["instance"]) else f":{gpu['instance']:.0f}"
    return f"{rank.host}/{gpu['index']:.0f}{instance}"


def mean(now: Figures, total: str, seconds: str, before: Figures = NOTHING) -> float:
    """By how much a sum has grown in a second; NaN where it was not known."""
    passed = grown(now, before, seconds)
    return grown(now, before, total) / passed if passed > 0 else math.nan


def grown(now: Figures, before: Figures, key: str) -> float:
    """By how much a sum has grown."""
    earlier = before.get(key, 0.0)
    return now[key] - (0.0 if math.isnan(earlier) else earlier)


def _of_process(now: Figures, before: Figures) -> dict[str, Any]:
    values = {"cpu_cores": round(mean(now, "cpu_seconds", "seconds", before), 3)}
    whole = {key: _whole(now[key]) for key in ("memory_bytes", *TORCH)}
    return values | {key: value for key, value in whole.items() if key not in TORCH or value is not None}


def _of_gpu(now: Figures, before: Figures) -> dict[str, Any]:
    values = {
        "utilisation_percent": round(mean(now, "busy", "busy_s", before), 1),
        "memory_bytes": _whole(now["memory_bytes"]),
        "power_w": round(mean(now, "energy_j", "energy_s", before), 1),
        "temperature_c": _whole(now["temperature_c"]),
    }
    low = [words for key, words in REASONS.items() if grown(now, before, key) > 0]
    return values | ({"throttled": low} if low else {})


def _whole(value: float) -> int | None:
    return round(value) if math.isfinite(value) else None


def _pairs(now: Sequence[Rank], before: Sequence[Rank]) -> list[tuple[Rank, Rank | None]]:
    earlier: Sequence[Rank | None] = before or [None] * len(now)
    return list(zip(now, earlier, strict=True))


def _passed(rank: Rank, before: Rank | None) -> bool:
    """Whether it was measured since. Never where nothing is known (NaN)."""
    return grown(rank.process, before.process if before else NOTHING, "seconds") > 0
