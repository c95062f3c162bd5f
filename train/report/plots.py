"""This module draws the pictures of a report, and builds the sections that contain them.

Only `RC_PARAMS` and the constants around it decide how plots look.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean
from typing import Any, Final, Literal

import matplotlib
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, StrMethodFormatter

from train.metrics import METRICS, NOT_MEASURED
from train.report import read
from train.report.document import Block, Paragraph, Picture, Section, Table
from train.report.read import (
    ConfusionMatrix,
    MetricsEvent,
    RecordedRun,
    count_or_none,
    finite_or_nan,
    format_number,
)

# Okabe and Ito's colours, which colour-blind people can tell apart, darkest first; and a marker and a dash for each,
# which a printer without colours can.
COLORS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
DASHES: Final = ("-", "--", "-.", (0, (3, 1, 1, 1)), (0, (5, 3)), (0, (1, 1)), ":")
GRAY: Final = "#6B7280"
PANEL_WIDTH, PANEL_HEIGHT, DPI = 5.2, 3.4, 150  # inches of one panel
MAX_NAME_LETTERS: Final = 40  # letters of a name in a picture

# Any: matplotlib types each key of its settings as a literal.
RC_PARAMS: Final[Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: no machine's own fonts, and no search for one
    "font.size": 9.0,
    "text.parse_math": False,  # a `$` in somebody's class name is a dollar
    "text.usetex": False,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GRAY,
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=COLORS),
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
def plot_style() -> Iterator[None]:
    """Inside, matplotlib draws as RC_PARAMS says, whatever a matplotlibrc of this machine or folder says."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matplotlib.rcParams.update(matplotlib.rcParamsDefault)
        matplotlib.rcParams.update(RC_PARAMS)
        yield


def make_figure(
    rows: int, columns: int, *, width: float = PANEL_WIDTH, height: float = PANEL_HEIGHT
) -> tuple[Figure, list[Axes]]:
    """(a figure, its axes row by row) for panels of `width` x `height` inches. To be called inside `look`."""
    figure = Figure(figsize=(columns * width, rows * height), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, list(figure.subplots(rows, columns, squeeze=False).flat)


def encode_png(figure: Figure) -> bytes:
    """The picture, the same bytes for the same numbers. To be called inside `look`."""
    out = io.BytesIO()
    figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


def shorten_name(name: str, longest: int = MAX_NAME_LETTERS) -> str:
    """A name that fits: its beginning and its end, which is where names of runs differ."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in name)
    half = longest // 2
    return shown if len(shown) <= longest else f"{shown[: longest - half - 1]}…{shown[-half:]}"


MAX_NUMBERED_CLASSES: Final = 20  # classes whose cells hold their number
MAX_HORIZONTAL_LETTERS: Final = 26  # of all names beside each other; more stand upright
MAX_LABELED_CLASSES: Final = 50  # and that have their name at the axes


def draw_confusion_matrix(matrix: Sequence[Sequence[int]], classes: Sequence[str]) -> bytes:
    """One PNG. matrix [classes, classes]: row by label, column by answer; a row without images stays white."""
    size = len(matrix)
    side = min(10.0, max(4.2, 2.4 + 0.36 * size))
    shares = [[cell / total if (total := sum(row)) else 0.0 for cell in row] for row in matrix]
    with plot_style():
        figure, (axes,) = make_figure(1, 1, width=side + 0.8, height=side)
        shown = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        axes.grid(visible=False)
        if size <= MAX_LABELED_CLASSES:
            names = [shorten_name(name, 18) for name in classes]
            side_by_side = size * max(map(len, names)) <= MAX_HORIZONTAL_LETTERS
            axes.set_xticks(range(size), names, rotation=0 if side_by_side else 90, fontsize=8)
            axes.set_yticks(range(size), names, fontsize=8)
        if size <= MAX_NUMBERED_CLASSES:
            for row, cells in enumerate(matrix):
                for column, count in enumerate(cells):
                    ink = "white" if shares[row][column] > 0.55 else "#111827" if count else "#9CA3AF"
                    axes.text(column, row, f"{count}", ha="center", va="center", fontsize=7, color=ink)
        figure.colorbar(shown, ax=axes, shrink=0.8, label="share of the row")
        return encode_png(figure)


SeriesStyle = Literal["line", "points", "ideal", "limit", "faint"]
# How each kind of series differs from a plain line. ideal and limit are what others are held against.
SERIES_STYLES: Final[Mapping[SeriesStyle, Mapping[str, Any]]] = {
    "line": {},
    "points": {},
    "ideal": {"color": GRAY, "linestyle": (0, (1, 1.5)), "linewidth": 1.3},
    "limit": {"color": "#B91C1C", "linestyle": (0, (6, 2)), "linewidth": 1.1},
    "faint": {"alpha": 0.35, "linewidth": 1.0},
}
MAX_LEGEND_ENTRIES: Final = 12  # names that a legend can hold
INTEGER_AXES: Final = ("epoch", "step")  # labels of x that are counted: nobody looks for epoch 2.5
MIN_MARK_DISTANCE: Final = 0.2  # of the width: the least between two words that stand beside each other


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotSeries:
    """y over x; NaN is a gap. low and high: the spread around each y, drawn as bars.

    colour: the number of one; series of the same colour belong together. Without it, by their order.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    style: SeriesStyle = "line"
    colour: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes. x and y: labels with their unit. marks: x -> a word above an upright line.

    ticks: where x has its numbers (1, 2, 4, ... processes); log_x, log_y: the base. legend: where matplotlib puts it.
    """

    title: str
    x: str
    y: str
    series: Sequence[PlotSeries]
    marks: Mapping[float, str] = field(default_factory=dict)
    ticks: Sequence[float] = ()
    log_x: int | None = None
    log_y: int | None = None
    from_zero: bool = False
    top: float | None = None
    legend: Literal["best", "lower left"] = "best"


def draw_panel(panel: Panel, *, note: str | None = None) -> bytes:
    """One PNG. note: said in the picture itself, so that it goes where the picture goes."""
    with plot_style():
        figure, (axes,) = make_figure(1, 1)
        _draw_axes(axes, panel)
        if note:
            lines = textwrap.wrap(shorten_name(note, 400), 85)  # matplotlib's own wrap reads a `$` as mathematics
            figure.suptitle("\n".join(lines), fontsize=9, color="#B91C1C")
        return encode_png(figure)


def _draw_axes(axes: Axes, panel: Panel) -> None:
    axes.set_title(shorten_name(panel.title, 60))
    axes.set_xlabel(_format_axis_label(panel.x, panel.log_x))
    axes.set_ylabel(_format_axis_label(panel.y, panel.log_y))
    _set_scales(axes, panel)
    shown = [series for series in panel.series if any(map(math.isfinite, series.y))]
    if not shown:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=GRAY)
    for number, series in enumerate(shown):
        _draw_series(axes, series, number if series.colour is None else series.colour)
    _set_limits(axes, panel)
    _draw_marks(axes, panel)
    if 1 < len(shown) <= MAX_LEGEND_ENTRIES:
        axes.legend(loc=panel.legend)
    elif len(shown) > MAX_LEGEND_ENTRIES:
        many = f"{len(shown)} lines: too many for a legend"
        axes.text(0.99, 0.98, many, transform=axes.transAxes, ha="right", va="top", fontsize=7, color=GRAY)


def _format_axis_label(text: str, base: int | None) -> str:
    return f"{text} (log scale)".lstrip() if base else text


def _draw_marks(axes: Axes, panel: Panel) -> None:
    """Each with its word above the axes, where no curve is; the words lean where they would touch."""
    if not panel.marks:
        return
    for at in panel.marks:
        axes.axvline(at, color=GRAY, linewidth=0.8, linestyle=":")
    above, places = axes.secondary_xaxis("top"), sorted(panel.marks)
    left, right = axes.get_xlim()
    near = any(b - a < MIN_MARK_DISTANCE * (right - left) for a, b in pairwise(places))
    above.set_ticks(places, labels=[shorten_name(panel.marks[at]) for at in places])
    above.tick_params(length=0, labelsize=7, labelcolor=GRAY, labelrotation=30 if near else 0, pad=1)
    above.spines["top"].set_visible(False)
    for word in above.get_xticklabels():
        word.set(ha="left" if near else "center", rotation_mode="anchor" if near else "default")


def _draw_series(axes: Axes, series: PlotSeries, number: int) -> None:
    """One series, told apart by colour, dash and marker: of the same colour, the next has another dash and marker."""
    turn, at = divmod(number, len(COLORS))
    other = (at + turn) % len(COLORS)
    look: dict[str, Any] = {"color": COLORS[at], "linestyle": DASHES[other], **SERIES_STYLES[series.style]}
    if series.style == "points" or len(series.x) == 1:
        look["marker"] = MARKERS[other]
    name = shorten_name(series.name)
    if series.low is None or series.high is None:
        axes.plot(series.x, series.y, label=name, **look)
    else:
        below = [max(0.0, y - low) for y, low in zip(series.y, series.low, strict=True)]
        above = [max(0.0, high - y) for y, high in zip(series.y, series.high, strict=True)]
        axes.errorbar(series.x, series.y, yerr=[below, above], capsize=3, label=name, **look)


def _set_scales(axes: Axes, panel: Panel) -> None:
    plain = StrMethodFormatter("{x:g}")
    if panel.log_x:
        axes.set_xscale("log", base=panel.log_x)
        axes.xaxis.set_major_formatter(plain)
    if panel.log_y:
        axes.set_yscale("log", base=panel.log_y)
        axes.yaxis.set_major_formatter(plain)
    if panel.x in INTEGER_AXES:
        axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    if panel.ticks:
        axes.xaxis.set_major_locator(FixedLocator(list(panel.ticks)))
        axes.xaxis.set_minor_locator(NullLocator())


def _set_limits(axes: Axes, panel: Panel) -> None:
    if panel.from_zero and not panel.log_y:
        axes.set_ylim(bottom=0)
    if panel.top is not None:
        axes.set_ylim(top=panel.top)


MIN_VALUE: Final = 1e-3  # of any unit: a logarithm has no place for 0
MET_COLOR, MISSED_COLOR = "#009E73", "#D55E00"
RATIOS_WIDTH, RATIO_ROW_HEIGHT = 7.2, 0.42  # inches, of the picture and of one row


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRatio:
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


def draw_ratios(title: str, rows: Sequence[TargetRatio]) -> bytes:
    """One PNG: a dot for each row, right of 1 where more than the target was reached, also where less is better."""
    with plot_style():
        figure, (axes,) = make_figure(1, 1, width=RATIOS_WIDTH, height=1.1 + RATIO_ROW_HEIGHT * max(1, len(rows)))
        axes.set_title(shorten_name(title, 90))
        axes.set_xscale("log")
        axes.axvline(1.0, color=GRAY, linewidth=1.2)
        for at, row in enumerate(rows):
            colour, sides = (
                MET_COLOR if row.met else MISSED_COLOR,
                [_share_of_target(row, row.low), _share_of_target(row, row.high)],
            )
            axes.plot([min(sides), max(sides)], [at, at], color=colour, linewidth=4, alpha=0.35, solid_capstyle="butt")
            axes.plot(
                [_share_of_target(row, row.value)], [at], color=colour, marker="o" if row.met else "X", linestyle=""
            )
        axes.set_yticks(range(len(rows)), [shorten_name(row.name, 60) for row in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel("times the target (right of the line: reached)")
        axes.xaxis.set_major_formatter("{x:g}")
        return encode_png(figure)


def _share_of_target(row: TargetRatio, value: float) -> float:
    """Above 1: better than asked. A target of 0 is reached by 0 alone."""
    reached, asked = max(value, MIN_VALUE), max(row.target, MIN_VALUE)
    return reached / asked if row.at_least else asked / reached


def render_panels(name: str, shown: Sequence[Panel], *, of: str, note: str | None = None) -> list[Picture]:
    """`name`.png, or `name`-loss.png and so on where there are several. of: what they are of, in words."""
    return [
        Picture(
            name=name if len(shown) == 1 else f"{name}-{_slug(panel.title)}",
            png=draw_panel(panel, note=note),
            alt=f"{panel.title} by {panel.x}, {of}",
        )
        for panel in shown
    ]


def _slug(title: str) -> str:
    """Learning rate: learning-rate. Titles are our own, and no two of a section are the same."""
    return "-".join(title.partition(",")[0].lower().split())


MAX_RESTART_MARKS: Final = 8  # restarts that a picture has room for


def curves_section(runs: Sequence[RecordedRun]) -> Section:
    """The curves of one run, or of several over each other."""
    shown = single_run_panels(runs[0]) if len(runs) == 1 else comparison_panels(runs)
    if not any(math.isfinite(y) for panel in shown for series in panel.series for y in series.y):
        return Section(
            title="Curves", blocks=[Paragraph(text="No log point was reached yet: there is nothing to draw.")]
        )
    return Section(title="Curves", blocks=render_panels("curves", shown, of=", ".join(run.name for run in runs)))


def single_run_panels(run: RecordedRun) -> list[Panel]:
    """Training beside validation."""
    x, marks = _x_axis_label([run]), restart_marks(run)
    loss = [
        metric_series(run, "train", "loss", name="train loss", colour=0),
        *_validation_series(run, is_share=False),
    ]
    scores = [metric_series(run, "train", "accuracy", name="train accuracy", colour=0, scale=100)]
    scores += _validation_series(run, is_share=True)
    rate = [metric_series(run, "train", "lr", name="learning rate", colour=0)]
    speed = [metric_series(run, "train", "images_per_s", name="images/s", colour=0)]
    return [
        Panel(title="Loss", x=x, y="nats", series=loss, marks=marks),
        Panel(title="Scores", x=x, y="%", series=scores, marks=marks),
        Panel(title="Learning rate", x=x, y="", series=rate, marks=marks, from_zero=True),
        Panel(title="Speed, all ranks together", x=x, y="images/s", series=speed, marks=marks, from_zero=True),
    ]


def comparison_panels(runs: Sequence[RecordedRun]) -> list[Panel]:
    """The same curve of each."""
    x, many = _x_axis_label(runs), len(runs) > MAX_LEGEND_ENTRIES
    selected = {read.selection_metric(run).name for run in runs}
    compared = [metric for metric in METRICS.values() if metric.always_shown or {metric.name} == selected]
    per_epoch = x == "epoch"

    def each(kind: str, key: str, scale: float = 1.0) -> list[PlotSeries]:
        dots = kind == "eval" and not many
        return [metric_series(run, kind, key, run.name, at, scale, per_epoch, dots) for at, run in enumerate(runs)]

    return [
        Panel(title="Train loss", x=x, y="nats", series=each("train", "loss")),
        *(
            Panel(
                title=f"Val {metric.label}",
                x=x,
                y="%" if metric.is_share else "nats",
                series=each("eval", metric.name, 100 if metric.is_share else 1),
            )
            for metric in sorted(compared, key=lambda metric: metric.is_share)
        ),
        Panel(
            title="Speed, all ranks together", x=x, y="images/s", series=each("train", "images_per_s"), from_zero=True
        ),
    ]


def metric_series(
    run: RecordedRun,
    kind: str,
    key: str,
    name: str,
    colour: int,
    scale: float = 1.0,
    per_epoch: bool = True,
    dots: bool = False,
) -> PlotSeries:
    """One value of one kind of event, by epoch where the length of one is known (and wanted)."""
    steps, values = run.column(kind, key)
    length = (run.steps_per_epoch if per_epoch else None) or 1
    return PlotSeries(
        name=name,
        x=[step / length for step in steps],
        y=[value * scale for value in values],
        style="points" if dots else "line",
        colour=colour,
    )


def restart_marks(run: RecordedRun) -> Mapping[float, str]:
    """Where later starts went on, with their number of ranks; none where there are too many to be told apart."""
    later = [start for start in run.starts if start["step"] > 0 and not start.get("idle")]
    if len(later) > MAX_RESTART_MARKS:
        return {}
    length = run.steps_per_epoch or 1
    return {
        start["step"] / length: f"goes on, {_format_ranks(count_or_none(start.get('world_size')))}" for start in later
    }


def _validation_series(run: RecordedRun, *, is_share: bool) -> list[PlotSeries]:
    """A series for each metric that is drawn in percent, or in nats."""
    drawn = [metric for metric in read.validation_metrics(run) if metric.is_share == is_share]
    scale = 100.0 if is_share else 1.0
    return [
        metric_series(run, "eval", metric.name, read.metric_label(metric), colour, scale, dots=True)
        for colour, metric in enumerate(drawn, 1)
    ]


def _x_axis_label(runs: Sequence[RecordedRun]) -> str:
    """Epochs are the same amount of work for any global batch."""
    return "epoch" if all(run.steps_per_epoch for run in runs) else "step"


def _format_ranks(count: int | None) -> str:
    return f"{count} rank{'s' * (count != 1)}" if count else "ranks not recorded"


MAX_DRAWN_CLASSES: Final = 200  # classes: of more, a cell is smaller than a dot
MAX_LISTED_CLASSES: Final = 20  # classes that all stand in the table; of more, the worst ones
MAX_LISTED_MISTAKES: Final = 10
MAX_RECALL_RUNS: Final = 8  # whose recalls stand side by side on paper
MAX_MATRICES: Final = 6  # runs whose matrix is shown, of several
CONFUSION_TITLE: Final = "Confusion matrix"
MATRIX_AXES_TEXT: Final = " Each row of the picture is a true class, each column a predicted one."


def confusion_section(run: RecordedRun) -> Section | None:
    """Of the best evaluation where it was kept, else of the last: matrix, classes, mistakes; None without any."""
    found = best_confusion(run) or run.confusion
    if found is None or not any(map(sum, found.matrix)):
        return None
    drawn = _confusion_pictures(run, found, "confusion")
    axes = MATRIX_AXES_TEXT if drawn else ""
    said = f"The validation images{_format_step(found)}{_describe_evaluation(run, found)}.{axes}"
    blocks: list[Block] = [Paragraph(text=said), *drawn, class_table(found)]
    if pairs := mistake_rows(found):
        blocks.append(Table(head=["true", "predicted", "images", "of its class"], rows=pairs, left=2))
    return Section(title=CONFUSION_TITLE, blocks=blocks)


def best_confusion(run: RecordedRun) -> ConfusionMatrix | None:
    """The matrix of the evaluation that the report calls the best; None where it is not among those kept."""
    best = read.best_evaluation(run)
    kept = [found for found in (run.confusion_best, run.confusion) if found is not None]
    return next((found for found in kept if best and found.step == best[1]), None)


def _describe_evaluation(run: RecordedRun, found: ConfusionMatrix) -> str:
    """Whether it is of the best evaluation, with its score."""
    metric, best = read.selection_metric(run), read.best_evaluation(run)
    values = dict(zip(*run.column("eval", metric.name), strict=True))
    if best is None or found.step not in values:
        return ""
    score = f"{read.metric_label(metric)} {read.format_metric(values[found.step], metric)}"
    if found.step == best[1]:
        return f", the best evaluation ({score})"
    highest = read.format_metric(best[0], metric)
    return f", the last evaluation ({score}), not the best ({highest}, after step {best[1]:,.0f})"


def confusion_comparison_section(runs: Sequence[RecordedRun]) -> Section | None:
    """Recall by class, run by run, where all have the same classes; and the matrix of each of the first runs."""
    there = [(run, run.confusion) for run in runs if run.confusion is not None and any(map(sum, run.confusion.matrix))]
    if not there:
        return None
    best = [(run, found) for run, _ in there if (found := best_confusion(run)) is not None]
    known = best if len(best) == len(there) else there  # like with like
    which = "best evaluation" if known is best else "last evaluation, which need not be its best"
    drawn = [
        picture
        for at, (run, found) in enumerate(known[:MAX_MATRICES], 1)
        for picture in _confusion_pictures(run, found, f"confusion-{at}")
    ]
    said = f"The validation images of each run's {which}.{MATRIX_AXES_TEXT if drawn else ''}"
    blocks: list[Block] = [Paragraph(text=said)]
    if len({found.classes for _, found in known}) == 1:
        blocks += recall_table(known).parts(MAX_RECALL_RUNS)
    return Section(title=CONFUSION_TITLE, blocks=[*blocks, *drawn])


def recall_table(known: Sequence[tuple[RecordedRun, ConfusionMatrix]]) -> Table:
    """Of each class in each run; of many classes those with the lowest mean."""
    rows = []
    for at, name in enumerate(known[0][1].classes):
        parts = [(found.matrix[at][at], sum(found.matrix[at])) for _, found in known]
        rows.append((sum(_sortable_ratio(*part) for part in parts), [name, *(_format_ratio(*part) for part in parts)]))
    if len(rows) > MAX_LISTED_CLASSES:
        rows = sorted(rows, key=lambda row: row[0])[:MAX_LISTED_CLASSES]
    return Table(head=[_class_heading(known[0][1]), *(run.name for run, _ in known)], rows=[row for _, row in rows])


def _confusion_pictures(run: RecordedRun, found: ConfusionMatrix, name: str) -> list[Picture]:
    """None of more classes than a picture can show."""
    if len(found.classes) > MAX_DRAWN_CLASSES:
        return []
    png, told = draw_confusion_matrix(found.matrix, found.classes), f"{run.name}{_format_step(found)}"
    return [Picture(name=name, png=png, alt=f"Confusion matrix of {told}", caption=told)]


def _format_step(found: ConfusionMatrix) -> str:
    return "" if found.step is None else f" after step {found.step:,}"


def class_table(found: ConfusionMatrix) -> Table:
    """Recall and precision by class, the worst recall first where there are many."""
    answered = [sum(column) for column in zip(*found.matrix, strict=True)]
    lines = [
        (
            _sortable_ratio(row[at], sum(row)),
            [name, f"{sum(row):,}", _format_ratio(row[at], sum(row)), _format_ratio(row[at], answered[at])],
        )
        for at, (name, row) in enumerate(zip(found.classes, found.matrix, strict=True))
    ]
    if len(lines) > MAX_LISTED_CLASSES:
        lines = sorted(lines, key=lambda line: line[0])[:MAX_LISTED_CLASSES]
    return Table(head=[_class_heading(found), "images", "recall", "precision"], rows=[line for _, line in lines])


def _class_heading(found: ConfusionMatrix) -> str:
    return (
        "class"
        if len(found.classes) <= MAX_LISTED_CLASSES
        else f"class (the {MAX_LISTED_CLASSES} with the lowest recall)"
    )


def mistake_rows(found: ConfusionMatrix) -> list[Sequence[str]]:
    """The most frequent ones."""
    names = found.classes
    wrong = [
        (count, label, answer)
        for label, row in enumerate(found.matrix)
        for answer, count in enumerate(row)
        if label != answer and count
    ]
    worst = sorted(wrong, key=lambda one: (-one[0], one[1], one[2]))[:MAX_LISTED_MISTAKES]
    return [[names[is_], names[said], f"{n:,}", _format_ratio(n, sum(found.matrix[is_]))] for n, is_, said in worst]


def _sortable_ratio(part: int, of: int) -> float:
    """A class without images comes last."""
    return part / of if of else 2.0


def _format_ratio(part: int, of: int) -> str:
    return f"{part / of:.1%}" if of else "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMetric:
    """One measured value: its name for people, its unit, and how many of the recorded unit make one of it."""

    name: str
    unit: str
    per: float = 1.0


# Keys of the lines `{"event": "gpu", "gpu": "node01/0", "time": ...}` in metrics.jsonl.
GPU_METRICS: Final[Mapping[str, GpuMetric]] = {
    "utilisation_percent": GpuMetric(name="GPU use", unit="%"),
    "memory_bytes": GpuMetric(name="Memory", unit="GiB", per=2**30),
    "power_w": GpuMetric(name="Power", unit="W"),
    "temperature_c": GpuMetric(name="Temperature", unit="°C"),
}
GPU_TITLE: Final = "GPU use"
MAX_COLORED_GPUS: Final = MAX_LEGEND_ENTRIES  # more GPUs are drawn faintly, in one colour


def gpu_section(run: RecordedRun) -> Section:
    """Curves and a table; a line where nothing was recorded."""
    by_gpu = gpu_events(run)
    if not by_gpu:
        why = "Not measured: this run has no lines about GPUs in metrics.jsonl."
        return Section(title=GPU_TITLE, blocks=[Paragraph(text=why)])
    since = min(finite_or_nan(event.get("time")) for events in by_gpu.values() for event in events)
    shown = [panel for key in GPU_METRICS if (panel := _gpu_panel(key, by_gpu, since)) is not None]
    blocks: list[Block] = []
    if shown:
        blocks += render_panels("gpus", shown, of=f"{len(by_gpu)} GPUs")
    return Section(title=GPU_TITLE, blocks=[*blocks, gpu_table(by_gpu)])


def gpu_comparison_section(runs: Sequence[RecordedRun]) -> Section | None:
    """One line for each run, over all its GPUs; None where no run has recorded any."""
    by_run = {run.name: [event for events in gpu_events(run).values() for event in events] for run in runs}
    known = {name: events for name, events in by_run.items() if events}
    return Section(title=GPU_TITLE, blocks=[gpu_table(known, "run")]) if known else None


def gpu_events(run: RecordedRun) -> dict[str, list[MetricsEvent]]:
    """The lines of each GPU, by its name, in the order of time."""
    found: dict[str, list[MetricsEvent]] = {}
    timed = [event for event in run.events.get("gpu", ()) if math.isfinite(finite_or_nan(event.get("time")))]
    for event in sorted(timed, key=lambda event: finite_or_nan(event["time"])):
        found.setdefault(str(event.get("gpu")), []).append(event)
    return dict(sorted(found.items(), key=lambda one: _natural_sort_key(one[0])))


def _natural_sort_key(name: str) -> list[tuple[int, str]]:
    """node01/2 before node01/10."""
    parts = re.findall(r"[0-9]{1,15}|[^0-9]+|[0-9]+", name)
    return [(int(part), "") if part.isascii() and part.isdecimal() else (-1, part) for part in parts]


def gpu_table(by_gpu: Mapping[str, Sequence[MetricsEvent]], what: str = "GPU") -> Table:
    """Mean and highest value of each kind, by GPU (or by what else the names are of)."""
    keys = [key for key in GPU_METRICS if any(_finite_values(events, key) for events in by_gpu.values())]
    head = [
        what,
        *(f"{GPU_METRICS[key].name}, {GPU_METRICS[key].unit}: {what}" for key in keys for what in ("mean", "highest")),
    ]
    rows = [
        [name, *(cell for key in keys for cell in _mean_and_max(_finite_values(events, key)))]
        for name, events in by_gpu.items()
    ]
    return Table(head=head, rows=rows)


def _gpu_panel(key: str, by_gpu: Mapping[str, Sequence[MetricsEvent]], since: float) -> Panel | None:
    kind = GPU_METRICS[key]
    curves = {name: _gpu_curve(events, key, since) for name, events in by_gpu.items() if _finite_values(events, key)}
    if not curves:
        return None
    if len(curves) > MAX_COLORED_GPUS:
        series = [PlotSeries(name=name, x=x, y=y, style="faint", colour=0) for name, (x, y) in curves.items()]
    else:
        series = [PlotSeries(name=name, x=x, y=y, colour=at) for at, (name, (x, y)) in enumerate(curves.items())]
    top = 105.0 if kind.unit == "%" else None
    return Panel(title=kind.name, x="minutes", y=kind.unit, series=series, from_zero=True, top=top)


def _gpu_curve(events: Sequence[MetricsEvent], key: str, since: float) -> tuple[list[float], list[float]]:
    minutes = [(finite_or_nan(event.get("time")) - since) / 60 for event in events]
    return minutes, [finite_or_nan(event.get(key)) / GPU_METRICS[key].per for event in events]


def _finite_values(events: Sequence[MetricsEvent], key: str) -> list[float]:
    return [value / GPU_METRICS[key].per for event in events if math.isfinite(value := finite_or_nan(event.get(key)))]


def _mean_and_max(values: Sequence[float]) -> tuple[str, str]:
    return (format_number(fmean(values)), format_number(max(values))) if values else (NOT_MEASURED, NOT_MEASURED)
