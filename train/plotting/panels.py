"""Series of numbers with a title and two labels become a picture."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, Literal

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, StrMethodFormatter

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
WHOLE: Final = ("epoch", "step")  # labels of x that are counted: nobody looks for epoch 2.5
APART: Final = 0.2  # of the width: the least between two words that stand beside each other


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
    """One pair of axes. x and y: labels with their unit. marks: x -> a word above an upright line.

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
    axes.set_xlabel(_label(panel.x, panel.log_x))
    axes.set_ylabel(_label(panel.y, panel.log_y))
    _scale(axes, panel)
    shown = [series for series in panel.series if any(map(math.isfinite, series.y))]
    if not shown:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=paper.GREY)
    for number, series in enumerate(shown):
        _line(axes, series, number if series.colour is None else series.colour)
    _limits(axes, panel)
    _marks(axes, panel)
    if 1 < len(shown) <= MOST:
        axes.legend(loc=panel.legend)
    elif len(shown) > MOST:
        many = f"{len(shown)} lines: too many for a legend"
        axes.text(0.99, 0.98, many, transform=axes.transAxes, ha="right", va="top", fontsize=7, color=paper.GREY)


def _label(text: str, base: int | None) -> str:
    return f"{text} (log scale)".lstrip() if base else text


def _marks(axes: Axes, panel: Panel) -> None:
    """Each with its word above the axes, where no curve is; the words lean where they would touch."""
    if not panel.marks:
        return
    for at in panel.marks:
        axes.axvline(at, color=paper.GREY, linewidth=0.8, linestyle=":")
    above, places = axes.secondary_xaxis("top"), sorted(panel.marks)
    left, right = axes.get_xlim()
    near = any(b - a < APART * (right - left) for a, b in pairwise(places))
    above.set_ticks(places, labels=[paper.short(panel.marks[at]) for at in places])
    above.tick_params(length=0, labelsize=7, labelcolor=paper.GREY, labelrotation=30 if near else 0, pad=1)
    above.spines["top"].set_visible(False)
    for word in above.get_xticklabels():
        word.set(ha="left" if near else "center", rotation_mode="anchor" if near else "default")


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
    if panel.x in WHOLE:
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    if panel.ticks:
        axes.xaxis.set_major_locator(FixedLocator(list(panel.ticks)))
        axes.xaxis.set_minor_locator(NullLocator())


def _limits(axes: Axes, panel: Panel) -> None:
    if panel.from_zero and not panel.log_y:
        axes.set_ylim(bottom=0)
    if panel.top is not None:
        axes.set_ylim(top=panel.top)
