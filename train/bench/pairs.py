"""Two ways to do the same, measured in turns: pairs of times become a ratio with its spread and its confidence."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Final

DRAWS: Final = 2000  # of the bootstrap
SURE: Final = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A median with the bounds that hold it with 95 % confidence, the quartiles, and how many values it is of."""

    value: float
    low: float
    high: float
    quarter: float
    three_quarters: float
    of: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """What each side took, pair by pair: seconds, or whatever is smaller when it is better."""

    ours: tuple[float, ...]
    peer: tuple[float, ...]

    def faster(self) -> Estimate:
        """Our speed / the peer's."""
        return estimate([peer / ours for ours, peer in zip(self.ours, self.peer, strict=True)])

    def longer(self) -> Estimate:
        """Our time / the peer's."""
        return estimate([ours / peer for ours, peer in zip(self.ours, self.peer, strict=True)])

    def over(self, scale: float = 1.0) -> Estimate:
        """Our time minus the peer's, times `scale` (1e6: microseconds)."""
        return estimate([(ours - peer) * scale for ours, peer in zip(self.ours, self.peer, strict=True)])


def interleaved(
    ours: Callable[[], float], peer: Callable[[], float], *, pairs: int, warm_up: int = 1, swapped: bool = True
) -> Pairs:
    """Call both in turns; each returns what it took. The first `warm_up` pairs do not count.

    swapped: every second pair begins with the peer, so that what drifts (clocks, heat, caches) hits both alike.
    """
    found: list[tuple[float, float]] = []
    for number in range(warm_up + pairs):
        if swapped and number % 2:
            theirs = peer()
            found.append((ours(), theirs))
        else:
            mine = ours()
            found.append((mine, peer()))
    mine_all, theirs_all = zip(*found[warm_up:], strict=True)
    return Pairs(ours=mine_all, peer=theirs_all)


def estimate(values: Sequence[float], seed: int = 0) -> Estimate:
    """The median of one value or more. The bounds come from medians of values drawn again with repetition."""
    low, high = _bounds(values, random.Random(seed))
    first, _, third = quantiles(values, n=4, method="inclusive") if len(values) > 1 else [values[0]] * 3
    return Estimate(value=median(values), low=low, high=high, quarter=first, three_quarters=third, of=len(values))


def exactly(value: float) -> Estimate:
    """A count: no spread."""
    return estimate([value])


def _bounds(values: Sequence[float], draw: random.Random) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    medians = sorted(median(draw.choices(values, k=len(values))) for _ in range(DRAWS))
    aside = int(DRAWS * (1 - SURE) / 2)
    return medians[aside], medians[-1 - aside]
