"""Two ways to do the same, measured in turns: pairs of times become a ratio with its spread and its confidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median, quantiles
from typing import Final

SURE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A median with its bounds, the quartiles, and how many values it is of.

    sure: the bounds hold the median with 95 % confidence; else they are the lowest and the highest of too few values.
    """

    value: float
    low: float
    high: float
    quarter: float
    three_quarters: float
    of: int
    sure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """What each side took, pair by pair: seconds, or whatever is smaller when it is better."""

    ours: tuple[float, ...]
    peer: tuple[float, ...]

    def and_(self, more: Pairs) -> Pairs:
        """These, and those of another start."""
        return Pairs(ours=self.ours + more.ours, peer=self.peer + more.peer)

    def faster(self) -> Estimate:
        """Our speed / the peer's."""
        return estimate([peer / ours for ours, peer in zip(self.ours, self.peer, strict=True)])

    def longer(self) -> Estimate:
        """Our time / the peer's."""
        return estimate([ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)])

    def over(self, scale: float = 1.0) -> Estimate:
        """Our time minus the peer's, times `scale` (1e6: microseconds)."""
        return estimate([(ours - peer) * scale for ours, peer in zip(self.ours, self.peer, strict=True)])


def interleaved(ours: Callable[[], float], peer: Callable[[], float], *, pairs: int, warm_up: int = 1) -> Pairs:
    """Call both in turns; each returns what it took. The first `warm_up` pairs do not count.

    Every second pair begins with the peer, so that what drifts (clocks, heat, caches) hits both alike.
    """
    found: list[tuple[float, float]] = []
    for number in range(warm_up + pairs):
        if number % 2:
            theirs = peer()
            found.append((ours(), theirs))
        else:
            mine = ours()
            found.append((mine, peer()))
    mine_all, theirs_all = zip(*found[warm_up:], strict=True)
    return Pairs(ours=mine_all, peer=theirs_all)


def estimate(values: Sequence[float], sure: float = SURE) -> Estimate:
    """The median of one value or more."""
    ranked, aside = sorted(values), _aside(len(values), sure)
    first, _, third = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return Estimate(
        value=median(values),
        low=ranked[aside or 0],
        high=ranked[-1 - (aside or 0)],
        quarter=first,
        three_quarters=third,
        of=len(values),
        sure=aside is not None,
    )


def exactly(value: float) -> Estimate:
    """A count: no spread."""
    return estimate([value])


def quotient(ours: Sequence[float], peer: Sequence[float]) -> Estimate | None:
    """Median / median, of values that are no pairs.

    The spread of both is in the bounds: each side's with 97.5 %, so that both hold with 95 %. None: the peer's median
    is not surely above 0.
    """
    mine, theirs = (estimate(values, (1 + SURE) / 2) for values in (ours, peer))
    if theirs.low <= 0:
        return None
    ends = sorted(one / other for one in (mine.low, mine.high) for other in (theirs.low, theirs.high))
    inner = sorted(
        one / other for one in (mine.quarter, mine.three_quarters) for other in (theirs.quarter, theirs.three_quarters)
    )
    return Estimate(
        value=mine.value / theirs.value,
        low=ends[0],
        high=ends[-1],
        quarter=inner[0],
        three_quarters=inner[-1],
        of=min(mine.of, theirs.of),
        sure=mine.sure and theirs.sure,
    )


def _aside(number: int, sure: float) -> int | None:
    """How many of the ranked values may be left out at each end, so that the rest holds the median; None: not even all
    are enough.

    Each value is above the median with a chance of a half, whatever is measured: the binomial distribution.
    """
    tail, found = 0.0, None
    for left in range(number):
        tail += comb(number, left) / 2**number
        if 2 * tail > 1 - sure:
            break
        found = left
    return found
