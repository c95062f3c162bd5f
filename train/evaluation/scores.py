"""What an evaluation comes to, as plain numbers; which of two is better, and when one is good enough. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LOWER: Final = ("loss",)  # of names.METRICS: better when lower


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Measured on `samples` held-out images.

    accuracy: the share whose class has the largest logit; top5_accuracy: whose class is among the five largest.
    loss: mean cross-entropy in nats, without label smoothing or class weights.
    macro_f1: mean F1 over the classes that were held out or answered. recall: by class; None without an image of it.
    What is None was not measured: the result comes from a checkpoint of an older version.
    """

    accuracy: float
    loss: float
    samples: int
    top5_accuracy: float | None = None
    macro_f1: float | None = None
    recall: tuple[float | None, ...] | None = None

    def __post_init__(self) -> None:
        """JSON has no tuples: what comes back from a checkpoint is a list."""
        if self.recall is not None:
            object.__setattr__(self, "recall", tuple(self.recall))


def better(metric: str, new: Result, old: Result | None) -> bool:
    """Whether `new` beats `old` by one of names.METRICS. A number beats nothing and NaN; NaN beats nothing at all."""
    ours, theirs = _value(metric, new), _value(metric, old)
    if ours is None or theirs is None:
        return ours is not None
    return ours < theirs if metric in LOWER else ours > theirs


def reached(metric: str, result: Result, target: float) -> bool:
    """Whether `result` is as good as `target`, or better."""
    value = _value(metric, result)
    if value is None:
        return False
    return value <= target if metric in LOWER else value >= target


def macro_f1(right: Sequence[float], given: Sequence[float], due: Sequence[float]) -> float:
    """The mean F1 over the classes that occur, each counting the same: scikit-learn's average="macro".

    By class: right answers, answers given, samples. A class that was neither answered nor there is left out; one that
    was there and never answered counts as 0.
    """
    both = [(hits, answers + samples) for hits, answers, samples in zip(right, given, due, strict=True)]
    f1 = [2 * hits / seen for hits, seen in both if seen]
    return math.fsum(f1) / len(f1)


def recall(right: Sequence[float], due: Sequence[float]) -> tuple[float | None, ...]:
    """By class the share of its samples that was answered right; None for a class without samples."""
    return tuple(hits / samples if samples else None for hits, samples in zip(right, due, strict=True))


def _value(metric: str, result: Result | None) -> float | None:
    """The number, where there is one."""
    value: float | None = getattr(result, metric) if result else None
    return None if value is None or math.isnan(value) else value
