"""A run's lines become the few figures that it is judged by, and words for them."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, Final

from entrypoint import redact, redact_words
from train.report.reading import Event, Run, number, whole

NOT: Final = "not measured"
UNKNOWN: Final = "not recorded"
FIVE: Final = 5
SCORES: Final = {
    "accuracy": "val accuracy",
    "top5_accuracy": "val top-5",
    "macro_f1": "val macro F1",
    "loss": "val loss",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Images per second between log points: the median, the quartiles, and of how many.

    ranks: of the start that it is of. warm_up: only its first log point is there, which holds its first steps.
    """

    images_per_s: float
    low: float
    high: float
    of: int
    ranks: int | None
    warm_up: bool = False


def speed(run: Run) -> Speed | None:
    """Of the last start with a log point, all ranks together: without evaluations and saves and, of several lines,
    without the first.
    """
    for start in reversed(run.starts or [{"step": 0}]):
        if known := _rates(run, after=start["step"]):
            used, ranks = known[1:] or known, whole(start.get("world_size")) or run.world_size
            low, _, high = quantiles(used, n=4, method="inclusive") if len(used) > 1 else (used[0],) * 3
            middle, single = median(used), len(known) == 1
            return Speed(images_per_s=middle, low=low, high=high, of=len(used), ranks=ranks, warm_up=single)
    return None


def ranks(run: Run) -> int | None:
    """Of the start whose speed counts."""
    found = speed(run)
    return found.ranks if found else run.world_size


def _rates(run: Run, *, after: int) -> list[float]:
    """What the log points after a step say."""
    lines = [event for event in run.events.get("train", ()) if (whole(event.get("step")) or 0) > after]
    return [value for event in lines if (value := number(event.get("images_per_s"))) > 0]


def training_seconds(run: Run) -> float | None:
    """Spent in training steps up to the last log point, in all starts."""
    batch, before, total = whole(run.config.get("train.global_batch_size")), 0.0, 0.0
    steps, rates = run.column("train", "images_per_s")
    if not batch or not steps:
        return None
    for step, rate in zip(steps, rates, strict=True):
        total += (step - before) * batch / rate if rate > 0 else 0.0
        before = step
    return total


def scores(run: Run) -> dict[str, str]:
    """What may be told of its evaluations: of five classes, the right one is always among the best five."""
    few = run.classes is not None and run.classes <= FIVE
    return {key: name for key, name in SCORES.items() if key != "top5_accuracy" or not few}


def metric(run: Run) -> str:
    """The one that decides which checkpoint is the best."""
    wanted = run.config.get("eval.metric")
    return wanted if isinstance(wanted, str) else "accuracy"


def best(run: Run) -> tuple[float, float] | None:
    """(value, step) of the best evaluation by the run's own metric."""
    steps, values = run.column("eval", metric(run))
    found = [(value, step) for value, step in zip(values, steps, strict=True) if math.isfinite(value)]
    if not found:
        return None
    sign = -1 if metric(run) == "loss" else 1
    return max(found, key=lambda pair: (sign * pair[0], -pair[1]))


def last_step(run: Run) -> int | None:
    """That stands in the record."""
    steps = [whole(event.get("step")) for kind in ("train", "eval", "checkpoint") for event in run.events.get(kind, ())]
    return max((step for step in steps if step is not None), default=None)


def status(run: Run) -> str:
    """How it ended, or that nobody said so."""
    said = whole(run.ending.step) if run.ending else None
    step, steps = last_step(run) if said is None else said, whole(run.fact("training", "steps"))
    at = "before its first log point" if step is None else f"at step {step:,}" + (f" of {steps:,}" if steps else "")
    if run.ending is None:
        return f"unfinished, {at}: {run.cut_off or 'it is at work, or was killed'}"
    if run.ending.code == 0:
        return f"finished {at}"
    how = "stopped" if run.ending.code == 75 else "failed"
    return f"{how} {at} (exit code {run.ending.code}): {run.ending.cause}"


def place(run: Run) -> str:
    """2 ranks on 1 node."""
    ranks, nodes = run.world_size, whole(run.fact("world", "num_nodes"))
    if not ranks or not nodes:
        return "not recorded"
    return f"{ranks} rank{'s' * (ranks > 1)} on {nodes} node{'s' * (nodes > 1)}"


def share(value: float | None, called: str = "accuracy") -> str:
    """In percent, but for a loss and for F1, which people write as they are."""
    if value is None or not math.isfinite(value):
        return NOT
    return f"{value:.4f}" if called in ("loss", "macro_f1") else f"{value:.2%}"


def rate(found: Speed | None) -> str:
    """Images per second."""
    if found is None:
        return NOT
    return f"{short(found.images_per_s)} images/s" + (" (first steps only)" if found.warm_up else "")


def short(value: float) -> str:
    """Three digits that count, thousands with a comma."""
    if not math.isfinite(value):
        return NOT
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"  # else: 1e+03


def duration(seconds: float | None) -> str:
    """12.3 s, 4 min 05 s, 3 h 07 min."""
    if seconds is None or not math.isfinite(seconds):
        return NOT
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def setting(value: Any) -> str:
    """Of a configuration, where null is a value."""
    return "null" if value is None else told(value)


def told(value: Any) -> str:
    """A value of a file for people: no quotes or brackets, and commas in large numbers."""
    if value is None:
        return UNKNOWN
    if isinstance(value, dict):
        return ", ".join(redact_words(f"{key}={told(one)}" for key, one in value.items())) or "none"
    if isinstance(value, list):
        return ", ".join(map(told, value)) or "none"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:,}" if abs(value) < 10**18 else f"{value:e}"
    if isinstance(value, str):
        return redact(value)
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def times(run: Run) -> list[float]:
    """Seconds since 1970 of all lines of the record, in order."""
    lines: list[Event] = [event for events in run.events.values() for event in events]
    return sorted(at for event in lines if math.isfinite(at := number(event.get("time"))))
