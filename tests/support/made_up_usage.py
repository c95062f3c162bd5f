"""Made up: what ranks and their GPUs have consumed."""

from __future__ import annotations

import math

from entrypoint import monitor
from train.logging import resources
from train.logging.resources import RankUsage

GIB = 2**30


def process(**known: float) -> dict[str, float]:
    """A rank on a CPU: 10 s, 15 of a processor."""
    found = {"seconds": 10.0, "cpu_seconds": 15.0, "memory_bytes": float(GIB), "memory_peak_bytes": 2.0 * GIB}
    return found | dict.fromkeys(resources.TORCH_MEMORY_KEYS, math.nan) | known


def gpu(**known: float) -> dict[str, float]:
    """A GPU that was busy for half of 10 s, at 300 W."""
    found = dict.fromkeys(monitor.GPU_FIELDS, 0.0) | {
        "instance": math.nan,
        "busy": 500.0,
        "busy_s": 10.0,
        "reasons_s": 10.0,
    }
    found |= {"memory_bytes": 3.0 * GIB, "memory_peak_bytes": 4.0 * GIB, "memory_total_bytes": 80.0 * GIB}
    return found | {"energy_j": 3000.0, "energy_s": 10.0, "temperature_c": 50.0, "temperature_peak_c": 60.0} | known


def rank(number: int = 0, *gpus: dict[str, float], **known: float) -> RankUsage:
    """The rank of this number, on a node of the same."""
    return RankUsage(number=number, host=f"node{number:02d}", process=process(**known), gpus=gpus)


def row(one: RankUsage) -> list[float]:
    """A rank's numbers as it sends them."""
    own = [one.process[name] for name in monitor.PROCESS_FIELDS]
    return [
        *own,
        *(g[name] for g in one.gpus for name in monitor.GPU_FIELDS),
        *(one.process[name] for name in resources.TORCH_MEMORY_KEYS),
    ]
