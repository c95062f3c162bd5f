"""What all ranks have consumed becomes the last lines that a run says of it, and the last one of its record."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

from train.record.usage import REASONS, TORCH, Figures, Rank, mean, name

LONG: Final = 0.05  # of the time, at a lower clock: less is not worth a word
FIXES: Final[Mapping[str, str]] = {
    "hot_s": "look at its cooling (nvidia-smi -q -d TEMPERATURE), or leave that node out",
    "brake_s": "the node's power supply asks for less: tell its administrator, or leave that node out",
    "slow_s": "nvidia-smi -q -d PERFORMANCE says why; or leave that node out",
    "cap_s": "none, where the limit is the GPU's own; nvidia-smi -q -d POWER shows whether somebody lowered it",
}
J_IN_WH: Final = 3600.0
LOOKS: Final = 20  # the last may be one old, while all images count: of so many, a twentieth is missing at most
LARGE: Final = 10_000  # Wh: more are told in kWh


def facts(ranks: Sequence[Rank], images: int, every_s: float = 0.0) -> dict[str, str]:
    """Lines of the summary, for what is known. images: that were trained on meanwhile. every_s: between two looks."""
    known = values(ranks, images, every_s)
    told = {"GPU use": _use(ranks), "GPU memory": _gpu_memory(ranks), "energy": _energy(known, images, every_s)}
    told |= {"throttled": _throttled(ranks), "CPU use": _cpu(known), "memory": _memory(ranks)}
    return {key: words for key, words in told.items() if words}


def values(ranks: Sequence[Rank], images: int, every_s: float = 0.0) -> dict[str, Any]:
    """The same as numbers; what is not known is left out, and so is energy by image of less than LOOKS looks."""
    joules, gpus = [gpu["energy_j"] for gpu in _gpus(ranks) if gpu["energy_s"] > 0], _gpus(ranks)
    wh = sum(joules) / J_IN_WH if gpus and len(joules) == len(gpus) else math.nan  # of a part it would say too little
    seconds = _highest(rank.process["seconds"] for rank in ranks)
    found = {
        "seconds": seconds,
        "gpu_utilisation_percent": _mean(mean(gpu, "busy", "busy_s") for gpu in gpus),
        "gpu_memory_peak_bytes": _highest(gpu["memory_peak_bytes"] for gpu in gpus),
        "wh": wh,
        "wh_per_1000_images": wh / images * 1000 if images and seconds >= LOOKS * every_s else math.nan,
        "cpu_cores": _mean(mean(rank.process, "cpu_seconds", "seconds") for rank in ranks),
        "memory_peak_bytes": _highest(rank.process["memory_peak_bytes"] for rank in ranks),
        **{key: _highest(rank.process[key] for rank in ranks) for key in TORCH},
    }
    rounded = {key: round(value) if key.endswith("_bytes") else _short(value) for key, value in _known(found).items()}
    low = {REASONS[key]: _short(share) for key, (share, _) in _worst(ranks).items()}
    return rounded | ({"throttled": low} if low else {})


def size(number: float) -> str:
    """1.2 GiB, 340 MiB."""
    return f"{number / 2**30:,.1f} GiB" if number >= 2**30 else f"{number / 2**20:,.0f} MiB"


def _use(ranks: Sequence[Rank]) -> str:
    shares = {name(rank, gpu): mean(gpu, "busy", "busy_s") for rank in ranks for gpu in rank.gpus}
    known = {called: share for called, share in shares.items() if not math.isnan(share)}
    if not known:
        return ""
    least = min(known, key=lambda called: known[called])
    lowest = f", lowest {known[least]:.0f} % ({least})" if len(known) > 1 else ""
    return f"{fmean(known.values()):.0f} % of the time on average{lowest}"


def _gpu_memory(ranks: Sequence[Rank]) -> str:
    most = _first(ranks, lambda rank: _highest(gpu["memory_peak_bytes"] for gpu in rank.gpus))
    if most is None:
        return ""
    gpu = max(most.gpus, key=lambda gpu: -1.0 if math.isnan(gpu["memory_peak_bytes"]) else gpu["memory_peak_bytes"])
    own = _highest(rank.process[TORCH[0]] for rank in ranks)
    tensors = "" if math.isnan(own) else f"; torch's tensors up to {size(own)}"
    return f"up to {size(gpu['memory_peak_bytes'])} of {size(gpu['memory_total_bytes'])} ({name(most, gpu)}){tensors}"


def _energy(known: Mapping[str, Any], images: int, every_s: float) -> str:
    if "wh" not in known:
        return ""
    wh, each = known["wh"], ""
    if "wh_per_1000_images" in known:
        each = f", {_digits(known['wh_per_1000_images'], 3)} Wh per 1,000 images"
    elif images:
        each = f" (per image: only from {LOOKS * every_s:g} s of training on)"
    return f"{_digits(wh / 1000, 4)} kWh of the GPUs{each}" if wh >= LARGE else f"{_digits(wh, 4)} Wh of the GPUs{each}"


def _digits(value: float, number: int) -> str:
    """So many that count, never with an exponent above 0, as `g` alone would write 1.3e+05."""
    rounded = float(f"{value:.{number}g}")
    return f"{rounded:,.0f}" if rounded >= 1000 else f"{rounded:.{number}g}"


def _throttled(ranks: Sequence[Rank]) -> str:
    worst = {key: (share, who) for key, (share, who) in _worst(ranks).items() if share > LONG}
    lines = [
        f"{who}: {REASONS[key]} {100 * share:.0f} % of the time. fix: {FIXES[key]}"
        for key, (share, who) in worst.items()
    ]
    return f"\n{' ' * 15}".join(lines)


def _cpu(known: Mapping[str, Any]) -> str:
    return f"{known['cpu_cores']:.1f} cores per rank on average" if "cpu_cores" in known else ""


def _memory(ranks: Sequence[Rank]) -> str:
    most = _first(ranks, lambda rank: rank.process["memory_peak_bytes"])
    if most is None:
        return ""
    where = f" (rank {most.number} on {most.host})" if len(ranks) > 1 else ""
    return f"up to {size(most.process['memory_peak_bytes'])} per rank{where}"


def _worst(ranks: Sequence[Rank]) -> dict[str, tuple[float, str]]:
    """For each reason of a low clock the highest share of the time, and on which GPU."""
    found: dict[str, tuple[float, str]] = {}
    for key in REASONS:
        shares = [(mean(gpu, key, "reasons_s"), name(rank, gpu)) for rank in ranks for gpu in rank.gpus]
        most = max((one for one in shares if one[0] > 0), default=None)
        if most is not None:
            found[key] = most
    return found


def _first(ranks: Sequence[Rank], most: Callable[[Rank], float]) -> Rank | None:
    """The rank that has most; None where nobody's is known."""
    known = [rank for rank in ranks if not math.isnan(most(rank))]
    return max(known, key=most, default=None)


def _gpus(ranks: Sequence[Rank]) -> list[Figures]:
    return [gpu for rank in ranks for gpu in rank.gpus]


def _highest(numbers: Iterable[float]) -> float:
    return max((number for number in numbers if not math.isnan(number)), default=math.nan)


def _mean(numbers: Iterable[float]) -> float:
    known = [number for number in numbers if not math.isnan(number)]
    return fmean(known) if known else math.nan


def _known(found: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in found.items() if not math.isnan(value)}


def _short(value: float) -> float:
    return float(f"{value:.4g}")
