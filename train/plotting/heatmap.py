"""A confusion matrix becomes a picture: each row by what it adds up to, with numbers where they can be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from train.plotting import paper

NUMBERED: Final = 20  # classes whose cells hold their number
LETTERS: Final = 26  # of all names beside each other; more stand upright
NAMED: Final = 50  # and that have their name at the axes


def draw(matrix: Sequence[Sequence[int]], classes: Sequence[str]) -> bytes:
    """One PNG. matrix [classes, classes]: row by label, column by answer; a row without images stays white."""
    size = len(matrix)
    side = min(10.0, max(4.2, 2.4 + 0.36 * size))
    shares = [[cell / total if (total := sum(row)) else 0.0 for cell in row] for row in matrix]
    with paper.look():
        figure, (axes,) = paper.sheet(1, 1, width=side + 0.8, height=side)
        shown = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        axes.grid(visible=False)
        if size <= NAMED:
            names = [paper.short(name, 18) for name in classes]
            side_by_side = size * max(map(len, names)) <= LETTERS
            axes.set_xticks(range(size), names, rotation=0 if side_by_side else 90, fontsize=8)
            axes.set_yticks(range(size), names, fontsize=8)
        if size <= NUMBERED:
            for row, cells in enumerate(matrix):
                for column, count in enumerate(cells):
                    ink = "white" if shares[row][column] > 0.55 else "#111827" if count else "#9CA3AF"
                    axes.text(column, row, f"{count}", ha="center", va="center", fontsize=7, color=ink)
        figure.colorbar(shown, ax=axes, shrink=0.8, label="share of the row")
        return paper.png(figure)
