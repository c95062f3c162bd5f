"""From what every node's clock says at one moment to a word about those that differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ALLOWED_S: Final = 2.0  # ranks look at their clocks a few milliseconds apart


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One rank's clock: seconds since 1970."""

    node: int
    host: str
    seconds: float


def differences(readings: Sequence[Reading]) -> tuple[str, ...]:
    """One line where nodes differ from rank 0's by more than two seconds; `readings` in the order of the ranks.

    Nothing depends on it but times in logs, and a deadline that the scheduler gives in seconds since 1970: durations
    are measured by clocks that nobody sets.
    """
    nodes = {reading.node: reading for reading in reversed(readings)}  # each node's first rank
    first = nodes.pop(readings[0].node)
    off = [
        f"{other.host} is {abs(apart):.1f} s {'ahead of' if apart > 0 else 'behind'} {first.host}"
        for _, other in sorted(nodes.items())
        if abs(apart := other.seconds - first.seconds) > ALLOWED_S
    ]
    told = f"clocks differ: {', '.join(off[:8])}{f' and {len(off) - 8} more' if len(off) > 8 else ''}"
    return (f"{told}; times in logs do not compare (set the clocks: chronyc tracking)",) if off else ()
