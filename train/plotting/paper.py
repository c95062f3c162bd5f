"""A sheet of axes in one look becomes the bytes of a PNG. The only module that says how pictures look."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind people can tell apart, darkest first; and a marker and a dash for each,
# which a printer without colours can.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
DASHES: Final = ("-", "--", "-.", (0, (3, 1, 1, 1)), (0, (5, 3)), (0, (1, 1)), ":")
GREY: Final = "#6B7280"
WIDTH, HEIGHT, DPI = 5.2, 3.4, 150  # inches of one panel
LONGEST: Final = 40  # letters of a name in a picture

# Any: matplotlib types each key of its settings as a literal.
LOOK: Final[Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: no machine's own fonts, and no search for one
    "font.size": 9.0,
    "text.parse_math": False,  # a `$` in somebody's class name is a dollar
    "text.usetex": False,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=COLOURS),
    "grid.color": "#E5E7EB",
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": True,
    "legend.framealpha": 0.85,
    "legend.edgecolor": "none",
    "legend.fontsize": 8.0,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}


@contextmanager
def look() -> Iterator[None]:
    """Inside, matplotlib draws as LOOK says, whatever a matplotlibrc of this machine or folder says."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matplotlib.rcParams.update(matplotlib.rcParamsDefault)
        matplotlib.rcParams.update(LOOK)
        yield


def sheet(rows: int, columns: int, *, width: float = WIDTH, height: float = HEIGHT) -> tuple[Figure, list[Axes]]:
    """(a figure, its axes row by row) for panels of `width` x `height` inches. To be called inside `look`."""
    figure = Figure(figsize=(columns * width, rows * height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def png(figure: Figure) -> bytes:
    """The picture, the same bytes for the same numbers. To be called inside `look`."""
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def short(name: str, longest: int = LONGEST) -> str:
    """A name that fits: its beginning and its end, which is where names of runs differ."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in name)
    half = longest // 2
    return shown if len(shown) <= longest else f"{shown[: longest - half - 1]}…{shown[-half:]}"
