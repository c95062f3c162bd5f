"""Throughput on several numbers of processes becomes speed-up and efficiency, and the panels that show them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from train.plotting.panels import Panel, Series

WHAT: Final = "processes"
HEADROOM: Final = 1.08  # above the highest dot, which would be cut by the edge
ASKED: Final = 0.75  # the efficiency that computing centres ask for


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Images per second on so many processes, all together; low and high: the spread over what was measured.

    speed_up: where it was measured in turns, pair by pair, which drifts of the machine spoil less than a quotient.
    """

    processes: int
    images_per_s: float
    speed_up: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaled:
    """speed_up: times the images per second of the fewest processes. efficiency: of the ideal one, 1.0 is all."""

    processes: int
    images_per_s: float
    speed_up: float
    efficiency: float
    low: float
    high: float


def scaled(points: Sequence[Point]) -> list[Scaled]:
    """By the number of processes, held against the fewest. low and high become factors of speed-up too.

    The same for strong and weak scaling: both compare images per second, which is work over time.
    """
    rising = sorted((point for point in points if point.images_per_s > 0), key=lambda point: point.processes)
    return [_against(rising[0], point) for point in rising]


def _against(base: Point, point: Point) -> Scaled:
    speed_up = point.speed_up or point.images_per_s / base.images_per_s
    low = point.images_per_s if point.low is None else point.low
    high = point.images_per_s if point.high is None else point.high
    return Scaled(
        processes=point.processes,
        images_per_s=point.images_per_s,
        speed_up=speed_up,
        efficiency=speed_up * base.processes / point.processes,
        low=low / base.images_per_s,
        high=high / base.images_per_s,
    )


def panels(measured: Mapping[str, Sequence[Point]]) -> list[Panel]:
    """Speed-up and efficiency of each name against ideal and the 75 % line; none where nothing was measured."""
    curves = {name: found for name, points in measured.items() if (found := scaled(points))}
    ticks = sorted({float(point.processes) for found in curves.values() for point in found})
    if not ticks:
        return []
    ideal = [tick / ticks[0] for tick in ticks]
    up = [Series(name="ideal", x=ticks, y=ideal, style="ideal")]
    up += [Series(name=f"{ASKED:.0%} of ideal", x=ticks, y=[ASKED * one for one in ideal], style="limit")]
    share = [Series(name="ideal", x=ticks, y=[100.0 for _ in ticks], style="ideal")]
    share += [Series(name=f"{ASKED:.0%} of ideal", x=ticks, y=[100 * ASKED for _ in ticks], style="limit")]
    up += [_speed_up(name, number, found) for number, (name, found) in enumerate(curves.items())]
    share += [_efficiency(name, number, found) for number, (name, found) in enumerate(curves.items())]
    base = f"over {ticks[0]:g} {WHAT}" if ticks[0] > 1 else "over one"
    percent = Panel(title="Efficiency", x=WHAT, y="% of ideal", series=share, ticks=ticks, log_x=2, from_zero=True)
    return [
        Panel(title="Speed-up", x=WHAT, y=f"speed-up {base}", series=up, ticks=ticks, log_x=2, log_y=2),
        replace(percent, top=HEADROOM * max(map(_highest, share)), legend="lower left"),
    ]


def _highest(series: Series) -> float:
    return max([*series.y, *(series.high or ())])


def _speed_up(name: str, number: int, found: Sequence[Scaled]) -> Series:
    x, y = [float(one.processes) for one in found], [one.speed_up for one in found]
    low, high = [one.low for one in found], [one.high for one in found]
    return Series(name=name, x=x, y=y, low=low, high=high, style="points", colour=number)


def _efficiency(name: str, number: int, found: Sequence[Scaled]) -> Series:
    """In percent."""
    share = [100 * one.efficiency / one.speed_up for one in found]  # of one time the base, on so many processes
    return Series(
        name=name,
        x=[float(one.processes) for one in found],
        y=[100 * one.efficiency for one in found],
        low=[one.low * part for one, part in zip(found, share, strict=True)],
        high=[one.high * part for one, part in zip(found, share, strict=True)],
        style="points",
        colour=number,
    )
