"""This module draws the pictures of a report, and builds the sections that contain them.

Only `RC_PARAMS` and the constants around it decide how plots look.
"""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from itertools import chain, pairwise
from typing import Any, Concatenate, Final, Literal, ParamSpec

import matplotlib
import numpy as np
import numpy.typing as npt
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, StrMethodFormatter
from PIL import Image

from entrypoint import to_printable
from train.evaluation.mistakes import Calibration, NumberPairs
from train.files import read_regular_file
from train.metrics import METRICS, NOT_MEASURED, Metric
from train.report import read
from train.report.curves import GpuUse
from train.report.document import DPI, Block, Paragraph, Picture, Section, Table
from train.report.read import (
    ConfusionMatrix,
    RecordedRun,
    count_or_none,
    format_number,
)
from train.run.record import SAMPLES_FILE
from train.tasks import TASKS

# Okabe and Ito's colours, which colour-blind people can distinguish, darkest first. Each has a
# marker and a dash for printers without colours.
COLORS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X")
DASHES: Final = ("-", "--", "-.", (0, (3, 1, 1, 1)), (0, (5, 3)), (0, (1, 1)), ":")
GRAY: Final = "#6B7280"
PANEL_WIDTH, PANEL_HEIGHT = 5.2, 3.4  # inches of one panel
MAX_NAME_LETTERS: Final = 40  # of a name in a picture
Arguments = ParamSpec("Arguments")

# Any: matplotlib types each key of its settings as a literal.
RC_PARAMS: Final[Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on each machine, and no search for fonts
    "font.size": 9.0,
    "text.parse_math": False,  # a `$` in a class name is a dollar sign
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
    """Apply RC_PARAMS inside the context, instead of any matplotlibrc of this machine or folder."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matplotlib.rcParams.update(matplotlib.rcParamsDefault)
        matplotlib.rcParams.update(RC_PARAMS)
        yield


def plot(draw: Callable[Concatenate[Figure, Arguments], None]) -> Callable[Arguments, bytes]:
    """Turn a function that draws on a figure into one that returns a PNG: the same bytes for the same arguments."""

    @wraps(draw)
    def render(*args: Arguments.args, **kwargs: Arguments.kwargs) -> bytes:
        out = io.BytesIO()
        with plot_style():
            figure = Figure(dpi=DPI, layout="constrained")
            FigureCanvasAgg(figure)
            draw(figure, *args, **kwargs)
            figure.savefig(out, format="png", metadata={"Software": None})
        return out.getvalue()

    return render


def make_axes(figure: Figure, *, width: float = PANEL_WIDTH, height: float = PANEL_HEIGHT, **grid: Any) -> Any:
    """The axes of a figure that gets a size in inches.

    grid: arguments of `Figure.subplots`, which returns an array for several axes.
    """
    figure.set_size_inches(width, height)
    return figure.subplots(**grid)


def shorten_middle(name: str, max_letters: int = MAX_NAME_LETTERS) -> str:
    """Shorten a name to its beginning and its end, where names of runs differ."""
    printable = "".join(letter if letter.isprintable() else "?" for letter in to_printable(name))
    half = max_letters // 2
    return printable if len(printable) <= max_letters else f"{printable[: max_letters - half - 1]}…{printable[-half:]}"


MAX_NUMBERED_CLASSES: Final = 20  # with more classes, cells show no numbers
MAX_HORIZONTAL_LETTERS: Final = 26  # of all names together; longer ones are rotated
MAX_LABELED_CLASSES: Final = 50  # with more classes, axes show no names


@plot
def draw_confusion_matrix(figure: Figure, matrix: Sequence[Sequence[int]], classes: Sequence[str]) -> None:
    """Draw a PNG. matrix [classes, classes]: row by label, column by prediction.

    An empty row stays white.
    """
    size = len(matrix)
    side = min(10.0, max(4.2, 2.4 + 0.36 * size))
    shares = [[cell / total if (total := sum(row)) else 0.0 for cell in row] for row in matrix]
    axes = make_axes(figure, width=side + 0.8, height=side)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.grid(visible=False)
    if size <= MAX_LABELED_CLASSES:
        names = [shorten_middle(name, 18) for name in classes]
        side_by_side = size * max(map(len, names)) <= MAX_HORIZONTAL_LETTERS
        axes.set_xticks(range(size), names, rotation=0 if side_by_side else 90, fontsize=8)
        axes.set_yticks(range(size), names, fontsize=8)
    if size <= MAX_NUMBERED_CLASSES:
        for row, cells in enumerate(matrix):
            for column, count in enumerate(cells):
                text_color = "white" if shares[row][column] > 0.55 else "#111827" if count else "#9CA3AF"
                axes.text(column, row, f"{count}", ha="center", va="center", fontsize=7, color=text_color)
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the row")


# Four columns, so that names can be read on a phone, which shows the picture at less than half of its size.
SAMPLE_COLUMNS: Final = 4
SAMPLE_INCHES: Final = 1.3  # of the longer side of an image
SAMPLE_NAME_LETTERS: Final = 16  # of a name above an image
NOTE_LETTERS: Final = 76  # of a line of the note


@plot
def draw_samples(figure: Figure, samples: Sequence[tuple[npt.NDArray[np.uint8], str]], note: str) -> None:
    """Draw a PNG of small images [height, width] or [height, width, 3] with a name above each.

    note: a text inside the picture, so that it is not lost when the picture is copied.
    """
    rows = max(1, -(-len(samples) // SAMPLE_COLUMNS))
    height, width = samples[0][0].shape[:2] if samples else (1, 1)
    cell_width, cell_height = (SAMPLE_INCHES * side / max(height, width) for side in (width, height))
    lines = textwrap.wrap(shorten_middle(note, 4 * NOTE_LETTERS), NOTE_LETTERS)
    grid = make_axes(
        figure,
        width=SAMPLE_COLUMNS * max(cell_width, SAMPLE_INCHES) + 0.2,
        height=rows * (cell_height + 0.3) + 0.16 * len(lines),
        nrows=rows,
        ncols=SAMPLE_COLUMNS,
        squeeze=False,
    )
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, (image, name) in zip(figure.axes, samples, strict=False):
        axes.imshow(image, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        label = shorten_middle(name, SAMPLE_NAME_LETTERS)
        axes.set_title(label, fontsize=10, fontweight="normal", loc="center", pad=2)
    figure.suptitle("\n".join(lines), fontsize=8, color=GRAY, x=0.01, ha="left")


GAP_COLOR, GAP_FILL = "#D55E00", "#F7D3BD"


@plot
def draw_calibration(figure: Figure, calibration: Calibration) -> None:
    """Draw a PNG: a reliability diagram, and below it how many images each bin has."""
    bins = calibration.bins
    width = 1 / len(bins)
    (upper, lower) = make_axes(figure, height=PANEL_HEIGHT * 1.35, nrows=2, sharex=True, height_ratios=(3, 1))
    upper.set_title(f"Calibration, ECE {calibration.error:.3f}")
    upper.plot([0, 1], [0, 1], label="ideal", **SERIES_STYLES["ideal"])
    filled = [(number * width, each) for number, each in enumerate(bins) if each.images]
    left, accuracy = [x for x, _ in filled], [each.accuracy for _, each in filled]
    gaps = [each.confidence - each.accuracy for _, each in filled]
    upper.bar(left, accuracy, width, align="edge", color=COLORS[0], edgecolor="white", alpha=0.55)
    gap = {"facecolor": GAP_FILL, "edgecolor": GAP_COLOR, "hatch": "///", "linewidth": 0.6}
    upper.bar(left, gaps, width, accuracy, align="edge", label="gap to the mean confidence", **gap)
    upper.hlines(accuracy, left, [x + width for x in left], color="#111827", linewidth=2.2, label="accuracy")
    upper.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="accuracy")
    _draw_legend(upper)
    lower.bar(
        [number * width for number in range(len(bins))],
        [each.images for each in bins],
        width,
        align="edge",
        color=GRAY,
        edgecolor="white",
    )
    lower.yaxis.set_major_locator(MaxNLocator(3, integer=True))
    lower.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    lower.set(xlabel="confidence", ylabel="images")


@plot
def draw_numbers(figure: Figure, numbers: NumberPairs, *, residuals: bool) -> None:
    """Draw a PNG: the predicted number of each image over the true one, or its error and the mean error of all."""
    alpha = 0.75 if len(numbers.true) <= 200 else 0.35  # many points faintly, so that one sees where most are
    points = {"color": COLORS[0], "alpha": alpha, "markersize": 3.5, "markeredgewidth": 0}
    axes = make_axes(figure)
    if residuals:
        axes.axhline(0, **SERIES_STYLES["ideal"])
        axes.plot(numbers.true, np.subtract(numbers.predicted, numbers.true), "o", **points)
        mean = f"mean error {numbers.mean_error:+.3g}"
        axes.axhline(numbers.mean_error, color=COLORS[1], linewidth=1.2, label=mean)
        axes.set(xlabel="true", ylabel="error", title="Residuals: predicted - true")
    else:
        ends = [limit(*numbers.true, *numbers.predicted) for limit in (min, max)]
        axes.plot(ends, ends, label="right", **SERIES_STYLES["ideal"])
        axes.plot(numbers.true, numbers.predicted, "o", **points)
        title = shorten_middle(f"{numbers.name}: predicted over true", 60)
        axes.set(xlabel="true", ylabel="predicted", title=title)
    _draw_legend(axes)


SeriesStyle = Literal["line", "points", "ideal", "limit", "faint"]
# How each style differs from a plain line. ideal and limit are references for the other series.
SERIES_STYLES: Final[Mapping[SeriesStyle, Mapping[str, Any]]] = {
    "line": {},
    "points": {},
    "ideal": {"color": GRAY, "linestyle": (0, (1, 1.5)), "linewidth": 1.3},
    "limit": {"color": "#B91C1C", "linestyle": (0, (6, 2)), "linewidth": 1.1},
    "faint": {"alpha": 0.35, "linewidth": 1.0},
}
MAX_LEGEND_ENTRIES: Final = 12
FAINT_COLOR: Final = len(COLORS) - 1  # black, which is gray if it is faint
MAX_LETTERS_IN_TWO_COLUMNS: Final = 34  # of a name in a legend
LEGEND_ROW_HEIGHT: Final = 0.18  # inches
INTEGER_AXES: Final = ("epoch", "step")  # labels of x axes with integer ticks only
MIN_MARK_DISTANCE: Final = 0.2  # of the width, between two words that are not rotated


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotSeries:
    """y over x; NaN is a gap."""

    name: str  # in the legend, which leaves out an empty one
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None  # with high: the spread around each y, drawn as bars
    high: Sequence[float] | None = None
    style: SeriesStyle = "line"
    # An index into COLORS, equal for series that belong together; None means the order of the series.
    colour: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One pair of axes."""

    title: str
    x: str  # the label, with the unit
    y: str
    series: Sequence[PlotSeries]
    marks: Mapping[float, str] = field(default_factory=dict)  # x -> a word above a vertical line
    ticks: Sequence[float] = ()  # values of x that are labelled (1, 2, 4, ... processes)
    log_x: int | None = None  # the base of a logarithmic axis
    log_y: int | None = None
    from_zero: bool = False
    top: float | None = None


@plot
def draw_panel(figure: Figure, panel: Panel, *, note: str | None = None) -> None:
    """Draw a PNG.

    note: a text inside the picture, so that it is not lost when the picture is copied.
    """
    axes = make_axes(figure)
    _draw_axes(axes, panel)
    if note:
        lines = textwrap.wrap(shorten_middle(note, 400), 85)  # matplotlib's own wrapping treats a `$` as mathematics
        figure.suptitle("\n".join(lines), fontsize=9, color="#B91C1C")


def _draw_axes(axes: Axes, panel: Panel) -> None:
    axes.set_title(shorten_middle(panel.title, 60))
    _set_scales(axes, panel)
    finite = [series for series in panel.series if any(map(math.isfinite, series.y))]
    if not finite:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", color=GRAY)
    for number, series in enumerate(finite):
        _draw_series(axes, series, number if series.colour is None else series.colour)
    if panel.from_zero and not panel.log_y:
        axes.set_ylim(bottom=0)
    if panel.top is not None:
        axes.set_ylim(top=panel.top)
    _draw_marks(axes, panel)
    named = [series for series in finite if series.name]
    if len(finite) > 1 and 0 < len(named) <= MAX_LEGEND_ENTRIES:
        _draw_legend(axes, len(finite) - len(named))
    elif len(finite) > MAX_LEGEND_ENTRIES:
        note = f"{len(finite)} lines: too many for a legend"
        axes.text(0.99, 0.98, note, transform=axes.transAxes, ha="right", va="top", fontsize=7, color=GRAY)


def _draw_legend(axes: Axes, unnamed: int = 0) -> None:
    """Draw a legend below the axes, where it hides nothing, and make the picture as much higher.

    unnamed: the number of faint lines that it does not name.
    """
    figure = axes.figure
    assert isinstance(figure, Figure)
    handles, names = axes.get_legend_handles_labels()
    columns = 2 if max(map(len, names)) <= MAX_LETTERS_IN_TWO_COLUMNS else 1
    title = f"{unnamed} further runs are gray" if unnamed else None
    figure.legend(handles, names, loc="outside lower left", ncols=columns, title=title)
    rows = -(-len(names) // columns) + (title is not None)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW_HEIGHT * rows)


def _draw_marks(axes: Axes, panel: Panel) -> None:
    """Draw each mark with its word above the axes; words are rotated if they would overlap."""
    if not panel.marks:
        return
    for x in panel.marks:
        axes.axvline(x, color=GRAY, linewidth=0.8, linestyle=":")
    top_axis, positions = axes.secondary_xaxis("top"), sorted(panel.marks)
    left, right = axes.get_xlim()
    overlap = any(b - a < MIN_MARK_DISTANCE * (right - left) for a, b in pairwise(positions))
    top_axis.set_ticks(positions, labels=[shorten_middle(panel.marks[x]) for x in positions])
    top_axis.minorticks_off()
    top_axis.tick_params(length=0, labelsize=7, labelcolor=GRAY, labelrotation=30 if overlap else 0, pad=1)
    top_axis.spines["top"].set_visible(False)
    for word in top_axis.get_xticklabels():
        word.set(ha="left" if overlap else "center", rotation_mode="anchor" if overlap else "default")


def _draw_series(axes: Axes, series: PlotSeries, number: int) -> None:
    """Draw one series; when the colours repeat, dash and marker differ."""
    cycle, color = divmod(number, len(COLORS))
    dash = (color + cycle) % len(COLORS)
    style: dict[str, Any] = {"color": COLORS[color], "linestyle": DASHES[dash], **SERIES_STYLES[series.style]}
    if series.style == "points" or len(series.x) == 1:
        style["marker"] = MARKERS[dash]
    name = shorten_middle(series.name) or "_nolegend_"
    if series.low is None or series.high is None:
        axes.plot(series.x, series.y, label=name, **style)
    else:
        below = [max(0.0, y - low) for y, low in zip(series.y, series.low, strict=True)]
        above = [max(0.0, high - y) for y, high in zip(series.y, series.high, strict=True)]
        axes.errorbar(series.x, series.y, yerr=[below, above], capsize=3, label=name, **style)


def _set_scales(axes: Axes, panel: Panel) -> None:
    plain = StrMethodFormatter("{x:g}")
    x, y = (
        f"{text} (log scale)".lstrip() if base else text
        for text, base in ((panel.x, panel.log_x), (panel.y, panel.log_y))
    )
    axes.set(xlabel=x, ylabel=y)
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


def render_panels(name: str, panels: Sequence[Panel], *, of: str, note: str | None = None) -> list[Picture]:
    """Draw panels to `name`.png, or `name`-loss.png and so on for several.

    of: their subject, for the alt text.
    """
    return [
        Picture(
            name=name if len(panels) == 1 else f"{name}-{_slug(panel.title)}",
            png=draw_panel(panel, note=note),
            alt=f"{panel.title} by {panel.x}, {of}",
        )
        for panel in panels
    ]


def _slug(title: str) -> str:
    """A title as part of a file name: learning-rate.

    Titles are our own, and unique within a section.
    """
    return "-".join(re.findall(r"[a-z0-9]+", title.partition(",")[0].lower().replace("²", "2")))


MAX_RESTART_MARKS: Final = 8  # a picture has no room for more


def curves_section(runs: Sequence[RecordedRun], *, mark: str = "") -> Section:
    """The curves of one run, or of several in the same panels. mark: ends the pictures' names."""
    panels = single_run_panels(runs[0]) if len(runs) == 1 else comparison_panels(runs)
    if not any(math.isfinite(y) for panel in panels for series in panel.series for y in series.y):
        return Section(
            title="Curves", blocks=[Paragraph(text="No log point was reached yet: there is nothing to draw.")]
        )
    return Section(
        title="Curves", blocks=render_panels(f"curves{mark}", panels, of=", ".join(run.name for run in runs))
    )


def _loss_unit(runs: Sequence[RecordedRun]) -> str:
    """Numbers are standardized, so their loss has no unit."""
    return "nats" if all(TASKS[run.task].has_classes for run in runs) else ""


def _unit_and_scale(metrics: Sequence[Metric], runs: Sequence[RecordedRun]) -> tuple[str, float]:
    """The unit of an axis with these metrics, and how many of it a value of 1 is: R² alone is no percentage."""
    if any(metric.is_share and metric.in_percent for metric in metrics):
        return "%", 100.0
    if any(metric.in_units for metric in metrics):
        return "unit of the labels", 1.0
    return ("" if all(metric.is_share for metric in metrics) else _loss_unit(runs)), 1.0


def single_run_panels(run: RecordedRun) -> list[Panel]:
    """Panels of one run: training and validation metrics together."""
    x, marks = _x_axis_label([run]), restart_marks(run)
    loss = [
        metric_series(run, "train", "loss", name="train loss", colour=0),
        *_validation_series(run, is_share=False),
    ]
    shares = [metric for metric in read.meaningful_metrics(run.task, run.classes) if metric.is_share]
    unit, scale = _unit_and_scale(shares, [run])
    scores = [
        metric_series(run, "train", name, name=f"train {name.replace('_', ' ')}", colour=0, scale=scale)
        for name in TASKS[run.task].training_scores
    ]
    scores += _validation_series(run, is_share=True)
    in_units = [
        Panel(
            title=metric.label,
            x=x,
            y="unit of the labels",
            series=[
                metric_series(run, "train", metric.name, name=f"train {metric.label}", colour=0),
                metric_series(run, "eval", metric.name, read.metric_label(metric), 1, dots=True),
            ],
            marks=marks,
        )
        for metric in read.meaningful_metrics(run.task, run.classes)
        if metric.in_units
    ]
    learning_rate = [metric_series(run, "train", "lr", name="learning rate", colour=0)]
    speed = [metric_series(run, "train", "images_per_s", name="images/s", colour=0)]
    return [
        Panel(title="Loss", x=x, y=_loss_unit([run]), series=loss, marks=marks),
        *in_units,
        Panel(title="Scores", x=x, y=unit, series=scores, marks=marks),
        Panel(title="Learning rate", x=x, y="", series=learning_rate, marks=marks, from_zero=True),
        Panel(title="Speed, all ranks together", x=x, y="images/s", series=speed, marks=marks, from_zero=True),
    ]


def comparison_panels(runs: Sequence[RecordedRun]) -> list[Panel]:
    """Panels with the same curve of each run. Of many runs the first, which are the best, have a colour and a name."""
    x, many = _x_axis_label(runs), len(runs) > MAX_LEGEND_ENTRIES
    selected = {read.selection_metric(run).name for run in runs}
    tasks = {run.task for run in runs}
    metrics = [metric for metric in METRICS.values() if tasks & {*metric.tasks}]
    compared = [metric for metric in metrics if metric.always_shown or {metric.name} == selected]
    per_epoch = x == "epoch"

    def run_series(event: str, key: str, scale: float = 1.0) -> list[PlotSeries]:
        dots = event == "eval" and not many
        lines = [
            metric_series(run, event, key, run.name, colour, scale, per_epoch, dots) for colour, run in enumerate(runs)
        ]
        faint = [replace(line, name="", style="faint", colour=FAINT_COLOR) for line in lines[MAX_LEGEND_ENTRIES:]]
        return lines[:MAX_LEGEND_ENTRIES] + faint

    return [
        Panel(title="Train loss", x=x, y=_loss_unit(runs), series=run_series("train", "loss")),
        *(
            Panel(
                title=f"Val {metric.label}",
                x=x,
                y=_unit_and_scale([metric], runs)[0],
                series=run_series("eval", metric.name, _unit_and_scale([metric], runs)[1]),
            )
            for metric in sorted(compared, key=lambda metric: metric.is_share)
        ),
        Panel(
            title="Speed, all ranks together",
            x=x,
            y="images/s",
            series=run_series("train", "images_per_s"),
            from_zero=True,
        ),
    ]


def metric_series(
    run: RecordedRun,
    event: str,
    key: str,
    name: str,
    colour: int,
    scale: float = 1.0,
    per_epoch: bool = True,
    dots: bool = False,
) -> PlotSeries:
    """One value of the events of one name, over epochs if they are known and `per_epoch` is set."""
    steps, values = run.column(event, key)
    length = (run.steps_per_epoch if per_epoch else None) or 1
    return PlotSeries(
        name=name,
        x=[step / length for step in steps],
        y=[value * scale for value in values],
        style="points" if dots else "line",
        colour=colour,
    )


def restart_marks(run: RecordedRun) -> Mapping[float, str]:
    """x -> a word for each later start, with its number of ranks; none if there are too many."""
    later = [start for start in run.starts if start["step"] > 0 and not start.get("idle")]
    if len(later) > MAX_RESTART_MARKS:
        return {}
    ranks = [count_or_none(start.get("world_size")) for start in later]
    return {
        start["step"] / (run.steps_per_epoch or 1): "goes on, "
        + (f"{count} rank{'s' * (count != 1)}" if count else "ranks not recorded")
        for start, count in zip(later, ranks, strict=True)
    }


def _validation_series(run: RecordedRun, *, is_share: bool) -> list[PlotSeries]:
    """A series for each metric that is drawn in percent, or in nats."""
    metrics = [metric for metric in read.meaningful_metrics(run.task, run.classes) if not metric.in_units]
    drawn = [metric for metric in metrics if metric.is_share == is_share]
    _, scale = _unit_and_scale(drawn, [run])
    return [
        metric_series(run, "eval", metric.name, read.metric_label(metric), colour, scale, dots=True)
        for colour, metric in enumerate(drawn, 1)
    ]


def _x_axis_label(runs: Sequence[RecordedRun]) -> str:
    """Epochs are the same amount of work for any global batch."""
    return "epoch" if all(run.steps_per_epoch for run in runs) else "step"


MAX_SAMPLES_BYTES: Final = 8 * 2**20


def samples_section(run: RecordedRun) -> Section | None:
    """The picture that `train data show` drew into the run's folder; None without one."""
    try:
        png = read_regular_file(run.folder / SAMPLES_FILE, MAX_SAMPLES_BYTES)
        with Image.open(io.BytesIO(png), formats=("PNG",)) as image:
            image.verify()
    except (OSError, SyntaxError, Image.DecompressionBombError):
        return None
    text = "The first training images, augmented, in the order of training; drawn by `train data show`."
    picture = Picture(name="samples", png=png, alt=f"The first training images of {run.name}")
    return Section(title="What the network sees", blocks=[Paragraph(text=text), picture])


MAX_DRAWN_CLASSES: Final = 200  # with more classes, a cell is smaller than a pixel
MAX_LISTED_CLASSES: Final = 20  # of more classes, the table shows the worst ones
MAX_LISTED_MISTAKES: Final = 10
MAX_RECALL_RUNS: Final = 8  # columns of recall that fit on paper
MAX_MATRICES: Final = 6  # when several runs are compared
CONFUSION_TITLE: Final = "Confusion matrix"
MATRIX_AXES_TEXT: Final = " Each row of the picture is a true class, each column a predicted one."


def confusion_section(run: RecordedRun) -> Section | None:
    """Confusion matrix, classes and mistakes of the best evaluation, or of the last one.

    None without any.
    """
    matrix = best_confusion(run) or run.confusion
    if matrix is None or not any(map(sum, matrix.matrix)):
        return None
    pictures = confusion_pictures(matrix, "confusion", run.name)
    axes = MATRIX_AXES_TEXT if pictures else ""
    text = f"The validation images{_format_step(matrix)}{_describe_evaluation(run, matrix)}.{axes}"
    blocks: list[Block] = [Paragraph(text=text), *pictures, class_table(matrix)]
    if pairs := mistake_rows(matrix):
        blocks.append(Table(head=["true", "predicted", "images", "of its class"], rows=pairs, left=2))
    return Section(title=CONFUSION_TITLE, blocks=blocks)


def best_confusion(run: RecordedRun) -> ConfusionMatrix | None:
    """The matrix of the best evaluation; None if the run did not keep it."""
    best = read.best_evaluation(run)
    matrices = [matrix for matrix in (run.confusion_best, run.confusion) if matrix is not None]
    return next((matrix for matrix in matrices if best and matrix.step == best[1]), None)


def _describe_evaluation(run: RecordedRun, matrix: ConfusionMatrix) -> str:
    """Whether the matrix is of the best evaluation, with the score."""
    metric, best = read.selection_metric(run), read.best_evaluation(run)
    scores = dict(zip(*run.column("eval", metric.name), strict=True))
    if best is None or matrix.step not in scores:
        return ""
    score = f"({read.metric_label(metric)} {metric.format(scores[matrix.step])})"
    if matrix.step == best[1]:
        return f", the best evaluation {score}"
    return f", the last evaluation {score}, not the best ({metric.format(best[0])}, after step {best[1]:,.0f})"


def confusion_comparison_section(runs: Sequence[RecordedRun], *, mark: str = "") -> Section | None:
    """Recall by class and run, if all have the same classes, and the matrices of the first runs.

    mark: ends the pictures' names.
    """
    last = [(run, run.confusion) for run in runs if run.confusion is not None and any(map(sum, run.confusion.matrix))]
    if not last:
        return None
    best = [(run, matrix) for run, _ in last if (matrix := best_confusion(run)) is not None]
    chosen = best if len(best) == len(last) else last  # the same kind for all runs
    which = "best evaluation" if chosen is best else "last evaluation, which need not be its best"
    pictures = [
        picture
        for number, (run, matrix) in enumerate(chosen[:MAX_MATRICES], 1)
        for picture in confusion_pictures(matrix, f"confusion{mark}-{number}", run.name)
    ]
    text = f"The validation images of each run's {which}.{MATRIX_AXES_TEXT if pictures else ''}"
    blocks: list[Block] = [Paragraph(text=text)]
    if len({matrix.classes for _, matrix in chosen}) == 1:
        blocks += recall_table(chosen).parts(MAX_RECALL_RUNS)
    return Section(title=CONFUSION_TITLE, blocks=[*blocks, *pictures])


def recall_table(matrices: Sequence[tuple[RecordedRun, ConfusionMatrix]]) -> Table:
    """Recall of each class in each run; of many classes those with the lowest mean."""
    rows = []
    for index, name in enumerate(matrices[0][1].classes):
        counts = [(matrix.matrix[index][index], sum(matrix.matrix[index])) for _, matrix in matrices]
        total = sum(_sortable_ratio(*count) for count in counts)
        rows.append((total, [name, *(format_ratio(*count) for count in counts)]))
    return Table(head=[_class_heading(rows), *(run.name for run, _ in matrices)], rows=lowest_rows(rows))


def confusion_pictures(matrix: ConfusionMatrix, name: str, of: str) -> list[Picture]:
    """The picture of a matrix of a run or of several; none for more classes than a picture can show."""
    if len(matrix.classes) > MAX_DRAWN_CLASSES:
        return []
    png, caption = draw_confusion_matrix(matrix.matrix, matrix.classes), f"{of}{_format_step(matrix)}"
    return [Picture(name=name, png=png, alt=f"Confusion matrix of {caption}", caption=caption)]


def _format_step(matrix: ConfusionMatrix) -> str:
    return "" if matrix.step is None else f" after step {matrix.step:,}"


def class_table(matrix: ConfusionMatrix) -> Table:
    """Counts, recall, precision and F1 by class; of many classes those with the worst recall."""
    predicted = [sum(column) for column in zip(*matrix.matrix, strict=True)]
    rows = [
        (_sortable_ratio(row[index], sum(row)), [name, *count_cells(sum(row), predicted[index], row[index])])
        for index, (name, row) in enumerate(zip(matrix.classes, matrix.matrix, strict=True))
    ]
    return Table(head=[_class_heading(rows), *COUNT_COLUMNS], rows=lowest_rows(rows))


COUNT_COLUMNS: Final = ("images", "predicted", "correct", "recall", "precision", "F1")


def count_cells(images: int, predicted: int, correct: int) -> list[str]:
    """The cells of COUNT_COLUMNS for one class or label."""
    shares = [(correct, images), (correct, predicted), (2 * correct, images + predicted)]
    counts = [f"{count:,}" for count in (images, predicted, correct)]
    return [*counts, *(format_ratio(part, of) for part, of in shares)]


def lowest_rows(rows: Sequence[tuple[float, list[str]]]) -> list[list[str]]:
    """The cells of (score, cells) in their order; of many those with the lowest scores."""
    is_long = len(rows) > MAX_LISTED_CLASSES
    ordered = sorted(rows, key=lambda row: row[0])[:MAX_LISTED_CLASSES] if is_long else rows
    return [cells for _, cells in ordered]


def _class_heading(rows: Sequence[object]) -> str:
    return f"class (the {MAX_LISTED_CLASSES} with the lowest recall)" if len(rows) > MAX_LISTED_CLASSES else "class"


def mistake_rows(matrix: ConfusionMatrix) -> list[Sequence[str]]:
    """The most frequent confusions: true class, predicted class, images, share of the true class."""
    names = matrix.classes
    mistakes = [
        (count, label, prediction)
        for label, row in enumerate(matrix.matrix)
        for prediction, count in enumerate(row)
        if label != prediction and count
    ]
    worst = sorted(mistakes, key=lambda mistake: (-mistake[0], *mistake[1:]))[:MAX_LISTED_MISTAKES]
    return [
        [names[label], names[prediction], f"{count:,}", format_ratio(count, sum(matrix.matrix[label]))]
        for count, label, prediction in worst
    ]


def _sortable_ratio(part: int, of: int) -> float:
    """A ratio for sorting; a class without images comes last."""
    return part / of if of else 2.0


def format_ratio(part: int, of: int) -> str:
    """A share in percent; - without anything."""
    return f"{part / of:.1%}" if of else "-"


# Keys of the lines `{"event": "gpu", "gpu": "node01/0", "time": ...}` in metrics.jsonl -> the name of the value, its
# unit, and how many recorded units make one of them.
GPU_METRICS: Final[Mapping[str, tuple[str, str, int]]] = {
    "utilisation_percent": ("GPU use", "%", 1),
    "memory_bytes": ("Memory", "GiB", 2**30),
    "power_w": ("Power", "W", 1),
    "temperature_c": ("Temperature", "°C", 1),
}
GPU_TITLE: Final = "GPU use"
MAX_COLORED_GPUS: Final = MAX_LEGEND_ENTRIES  # more GPUs are drawn faintly, in one colour


def gpu_section(run: RecordedRun) -> Section:
    """Curves and a table of GPU use, or a line if nothing was recorded."""
    by_gpu = gpus_by_name(run)
    if not by_gpu:
        text = "Not measured: this run has no lines about GPUs in metrics.jsonl."
        return Section(title=GPU_TITLE, blocks=[Paragraph(text=text)])
    panels = [_gpu_panel(key, by_gpu) for key in _measured_gpu_metrics(by_gpu.values())]
    pictures = render_panels("gpus", panels, of=f"{len(by_gpu)} GPUs")
    return Section(title=GPU_TITLE, blocks=[*pictures, gpu_table({name: [gpu] for name, gpu in by_gpu.items()})])


def gpu_comparison_section(runs: Sequence[RecordedRun]) -> Section | None:
    """GPU use of each run, over all its GPUs; None if no run has recorded it."""
    measured = {run.name: [*run.metrics.gpus.values()] for run in runs if run.metrics.gpus}
    return Section(title=GPU_TITLE, blocks=[gpu_table(measured, "run")]) if measured else None


def gpus_by_name(run: RecordedRun) -> dict[str, GpuUse]:
    """The GPUs in the order of their names."""
    return {name: run.metrics.gpus[name] for name in sorted(run.metrics.gpus, key=_natural_sort_key)}


def _natural_sort_key(name: str) -> list[tuple[int, str]]:
    """A key that sorts node01/2 before node01/10."""
    parts = re.findall(r"[0-9]{1,15}|[^0-9]+|[0-9]+", name)
    return [(int(part), "") if part.isascii() and part.isdecimal() else (-1, part) for part in parts]


def gpu_table(gpus: Mapping[str, Sequence[GpuUse]], what: str = "GPU") -> Table:
    """Mean over the time and highest value of each metric, by GPU or by `what`, which may have several."""
    head, rows = [what], [[name] for name in gpus]
    for key in _measured_gpu_metrics(chain.from_iterable(gpus.values())):
        metric, unit, per = GPU_METRICS[key]
        head += [f"{metric}, {unit}: {statistic}" for statistic in ("mean", "highest")]
        for row, uses in zip(rows, gpus.values(), strict=True):
            total, seconds = sum(gpu.sums[key] for gpu in uses), sum(gpu.seconds[key] for gpu in uses)
            values = (total / seconds, max(gpu.highest[key] for gpu in uses)) if seconds else ()
            row += [format_number(value / per) for value in values] or [NOT_MEASURED] * 2
    return Table(head=head, rows=rows)


def _measured_gpu_metrics(gpus: Iterable[GpuUse]) -> list[str]:
    measured = {key for gpu in gpus for key, seconds in gpu.seconds.items() if seconds}
    return [key for key in GPU_METRICS if key in measured]


def _gpu_panel(key: str, by_gpu: Mapping[str, GpuUse]) -> Panel:
    title, unit, per = GPU_METRICS[key]
    start = min(gpu.curves[key].points()[0, 0] for gpu in by_gpu.values())
    measured = {name: gpu.curves[key].points() for name, gpu in by_gpu.items() if gpu.seconds[key]}
    is_faint = len(measured) > MAX_COLORED_GPUS
    series = [
        PlotSeries(
            name=name,
            x=((points[:, 0] - start) / 60).tolist(),
            y=(points[:, 1] / per).tolist(),
            style="faint" if is_faint else "line",
            colour=0 if is_faint else colour,
        )
        for colour, (name, points) in enumerate(measured.items())
    ]
    top = 105.0 if unit == "%" else None
    return Panel(title=title, x="minutes", y=unit, series=series, from_zero=True, top=top)
