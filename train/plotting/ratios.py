"""Measured values become a picture: each with its spread, as a share of what was aimed at, so that all fit one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from train.plotting import paper

LEAST: Final = 1e-3  # of any unit: a logarithm has no place for 0
MET, MISSED = "#009E73", "#D55E00"
WIDTH, ROW = 7.2, 0.42  # inches, of the picture and of one row


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A measured value with its spread and its target, all in the row's own unit. at_least: whether more is better.

    met: as who measured it judged: some rows by their median, some by the bound of their spread.
    """

    name: str
    value: float
    low: float
    high: float
    target: float
    at_least: bool
    met: bool


def draw(title: str, rows: Sequence[Ratio]) -> bytes:
    """One PNG: a dot for each row, right of 1 where more than the target was reached, also where less is better."""
    with paper.look():
        figure, (axes,) = paper.sheet(1, 1, width=WIDTH, height=1.1 + ROW * max(1, len(rows)))
        axes.set_title(paper.short(title, 90))
        axes.set_xscale("log")
        axes.axvline(1.0, color=paper.GREY, linewidth=1.2)
        for at, row in enumerate(rows):
            colour, sides = MET if row.met else MISSED, [_share(row, row.low), _share(row, row.high)]
            axes.plot([min(sides), max(sides)], [at, at], color=colour, linewidth=4, alpha=0.35, solid_capstyle="butt")
            axes.plot([_share(row, row.value)], [at], color=colour, marker="o" if row.met else "X", linestyle="")
        axes.set_yticks(range(len(rows)), [paper.short(row.name, 60) for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel("times the target (right of the line: reached)")
        axes.xaxis.set_major_formatter("{x:g}")
        return paper.png(figure)


def _share(row: Ratio, value: float) -> float:
    """Above 1: better than asked. A target of 0 is reached by 0 alone."""
    reached, asked = max(value, LEAST), max(row.target, LEAST)
    return reached / asked if row.at_least else asked / reached
