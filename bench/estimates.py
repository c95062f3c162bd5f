"""This module computes medians with their confidence, whatever the distribution of the values is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb
from statistics import median, quantiles
from typing import Final

CONFIDENCE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A median with its bounds, the quartiles, and the number of values (`of`).

    sure: the bounds hold the median with 95 % confidence; otherwise there are too few values, and the bounds are
    the lowest and the highest.
    """

    value: float
    low: float
    high: float
    quarter: float
    three_quarters: float
    of: int
    sure: bool


def estimate_median(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Estimate the median from one value or more."""
    ranked, num_cut = sorted(values), _num_cut_values(len(values), confidence)
    first, _, third = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return Estimate(
        value=median(values),
        low=ranked[num_cut or 0],
        high=ranked[-1 - (num_cut or 0)],
        quarter=first,
        three_quarters=third,
        of=len(values),
        sure=num_cut is not None,
    )


def exact(value: float) -> Estimate:
    """The estimate of a count, which has no spread."""
    return replace(estimate_median([value]), sure=True)


def ratio_of_medians(ours: Sequence[float], peer: Sequence[float]) -> Estimate | None:
    """Divide the medians of values that are no pairs.

    The bounds hold the spread of both: each side has 97.5 % confidence, so that both together have 95 %. The result
    is None if the peer's median is not surely above 0.
    """
    our_median, peer_median = (estimate_median(values, (1 + CONFIDENCE) / 2) for values in (ours, peer))
    if peer_median.low <= 0:
        return None
    bounds = sorted(a / b for a in (our_median.low, our_median.high) for b in (peer_median.low, peer_median.high))
    quartiles = sorted(
        a / b
        for a in (our_median.quarter, our_median.three_quarters)
        for b in (peer_median.quarter, peer_median.three_quarters)
    )
    return Estimate(
        value=our_median.value / peer_median.value,
        low=bounds[0],
        high=bounds[-1],
        quarter=quartiles[0],
        three_quarters=quartiles[-1],
        of=min(our_median.of, peer_median.of),
        sure=our_median.sure and peer_median.sure,
    )


def _num_cut_values(number: int, confidence: float) -> int | None:
    """How many ranked values can be cut off at each end so that the others still hold the median.

    None: not even all values are enough. Each value is above the median with a probability of one half, whatever is
    measured, so the count follows the binomial distribution.
    """
    tail, num_cut = 0.0, None
    for left in range(number):
        tail += comb(number, left) / 2**number
        if 2 * tail > 1 - confidence:
            break
        num_cut = left
    return num_cut
