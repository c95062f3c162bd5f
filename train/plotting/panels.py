"""Series of numbers with a title and two labels become a picture."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

from train.plotting import paper

Style = Literal["line", "points", "ideal", "limit", "faint"]
# How each kind of series differs from a plain line. ideal and limit are what others are held against.
STYLES: Final[Mapping[Style, Mapping[str, Any]]] = {
    "line": {},
    "points": {},
    "ideal": {"color": paper.GREY, "linestyle": (0, (1, 1.5)), "linewidth": 1.3},
    "limit": {"color": "#B91C1C", "linestyle": (0, (6, 2)), "linewidth": 1.1},
    "faint": {"alpha": 0.35, "linewidth": 1.0},
}
MOST: Final = 12  # names that a legend can hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """y over x; NaN is a gap. low and high: the spread around each y, drawn as bars.

    colour: the number of one; series of the same colour belong together. Without it, by their order.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    style: Style = "line"
    colour: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes. x and y: labels with their unit. marks: x -> a word, drawn as upright lines.

    ticks: where x has its numbers (1, 2, 4, ... processes); log_x, log_y: the base. legend: where matplotlib puts it.
    """

    title: str
    x: str
    y: str
    series: Sequence[Series]
    marks: Mapping[float, str] = field(default_factory=dict)
    ticks: Sequence[float] = ()
    log_x: int | None = None
    log_y: int | None = None
    from_zero: bool = False
    top: float | None = None
    legend: Literal["best", "lower left"] = "best"


def draw(panel: Panel, *, note: str | None = None) -> bytes:
    """One PNG. note: said in the picture itself, so that it goes where the picture goes."""
    with paper.look():
        figure, (axes,) = paper.sheet(1, 1)
        _fill(axes, panel)
        if note:
            lines = textwrap.wrap(paper.short(note, 400), 85)  # matplotlib's own wrap reads a `$` as mathematics
            figure.suptitle("\n".join(lines), fontsize=9, color="#B91C1C")
        return paper.png(figure)


def _fill(axes: Axes, panel: Panel) -> None:
    axes.set_title(paper.short(panel.title, 60))
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    _scale(axes, panel)
    shown = [series for series in panel.series if any(map(math.isfinite, series.y))]
    if not shown:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=paper.GREY)
    for number, series in enumerate(shown):
        _line(axes, series, number if series.colour is None else series.colour)
    for at, word in panel.marks.items():
        axes.axvline(at, color=paper.GREY, linewidth=0.8, linestyle=":")
        place: dict[str, Any] = {"rotation": 90, "va": "top", "ha": "right", "fontsize": 7, "color": paper.GREY}
        axes.text(at, 0.98, paper.short(word), transform=axes.get_xaxis_transform(), **place)
    _limits(axes, panel)
    if 1 < len(shown) <= MOST:
        axes.legend(loc=panel.legend)
    elif len(shown) > MOST:
        many = f"{len(shown)} lines: too many for a legend"
        axes.text(0.99, 0.98, many, transform=axes.transAxes, ha="right", va="top", fontsize=7, color=paper.GREY)


def _line(axes: Axes, series: Series, number: int) -> None:
    """One series, told apart by colour, dash and marker: of the same colour, the next has another dash and marker."""
    turn, at = divmod(number, len(paper.COLOURS))
    other = (at + turn) % len(paper.COLOURS)
    look: dict[str, Any] = {"color": paper.COLOURS[at], "linestyle": paper.DASHES[other], **STYLES[series.style]}
    if series.style == "points" or len(series.x) == 1:
        look["marker"] = paper.MARKERS[other]
    name = paper.short(series.name)
    if series.low is None or series.high is None:
        axes.plot(series.x, series.y, label=name, **look)
    else:
        below = [max(0.0, y - low) for y, low in zip(series.y, series.low, strict=True)]
        above = [max(0.0, high - y) for y, high in zip(series.y, series.high, strict=True)]
        axes.errorbar(series.x, series.y, yerr=[below, above], capsize=3, label=name, **look)


def _scale(axes: Axes, panel: Panel) -> None:
    plain = StrMethodFormatter("{x:g}")
    if panel.log_x:
        axes.set_xscale("log", base=panel.log_x)
        axes.xaxis.set_major_formatter(plain)
    if panel.log_y:
        axes.set_yscale("log", base=panel.log_y)
        axes.yaxis.set_major_formatter(plain)
    if panel.ticks:
        axes.xaxis.set_major_locator(FixedLocator(list(panel.ticks)))
        axes.xaxis.set_minor_locator(NullLocator())


def _limits(axes: Axes, panel: Panel) -> None:
    if panel.from_zero and not panel.log_y:
        axes.set_ylim(bottom=0)
    if panel.top is not None:
        axes.set_ylim(top=panel.top)
