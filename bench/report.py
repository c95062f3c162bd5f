"""This module turns a bench.json into a section of a report: the machine, the rows with their targets, and plots."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from bench.measurements import format_bounds, format_reached
from entrypoint import ExitCode, Failure, shell_command
from train import files
from train.metrics import NOT_MEASURED
from train.report import compare, plots
from train.report.compare import ScalingMeasurement
from train.report.document import Block, DescriptionList, Paragraph, Picture, Section, Table
from train.report.plots import GRAY, Panel, PlotSeries, make_axes, plot, shorten_middle
from train.report.read import finite_or_nan, format_number

SCALING_PREFIX: Final = "scaling"  # prefix of series with x = processes and a line `images_per_s`
MAX_TICKS: Final = 12  # values of x that are all labelled
THROUGHPUT_KEY: Final = "images_per_s"
CONFIDENCE_BARS_TEXT: Final = (
    "Bars on speed-up and efficiency are the bounds of images per second: they hold its median with 95 %, or are the "
    "range of too few blocks. They are over the median of the fewest processes, whose own spread is not in them. The "
    "95 % CI in the table above is of the speed-up itself."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchResults:
    """The results that `write_results` wrote; each object is checked where it is shown."""

    name: str
    machine: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    series: Sequence[Mapping[str, Any]]


def read_bench(path: Path) -> BenchResults:
    """Read the bench results in a JSON file.

    Raises:
        Failure: NO_INPUT if it cannot be read, DATA if it is no bench.
    """
    try:
        content = files.read_json(path)
    except OSError as error:
        fix = f"give a run's folder, or the file that `{shell_command('train bench --output DIR')}` wrote"
        raise Failure(f"{path} cannot be read", found=error.strerror, fix=fix, code=ExitCode.NO_INPUT) from error
    except ValueError:
        content = None
    if not isinstance(content, dict) or not ("rows" in content or "series" in content):
        raise Failure(
            f"{path} holds no bench",
            expected="a JSON object with rows and series",
            fix=f"give the bench.json that `{shell_command('train bench --output DIR')}` wrote",
            code=ExitCode.DATA,
        )
    return parse_bench(content, name=path.stem if path.stem != "bench" else f"{path.resolve().parent.name}/{path.stem}")


def parse_bench(content: Mapping[str, Any], name: str) -> BenchResults:
    """The bench results in a JSON object."""
    machine = content.get("machine")
    return BenchResults(
        name=name,
        machine=machine if isinstance(machine, dict) else {},
        rows=_only_objects(content.get("rows")),
        series=_only_objects(content.get("series")),
    )


def bench_section(bench: BenchResults, number: int = 1) -> Section:
    """The machine, the rows with their targets, and the series: those over processes as speed-up and efficiency."""
    blocks: list[Block] = [
        DescriptionList(rows={str(name): _format_json_value(value) for name, value in bench.machine.items()})
    ]
    if ratios := [ratio for row in bench.rows if (ratio := _target_ratio(row)) is not None]:
        png = draw_ratios("Measured against the target", ratios)
        alt = f"{sum(ratio.met for ratio in ratios)} of {len(ratios)} targets are reached"
        blocks.append(Picture(name=f"bench-{number}", png=png, alt=alt))
    if bench.rows:
        blocks.append(Table(head=BENCH_COLUMNS, rows=[_bench_cells(row) for row in bench.rows], left=4))
    scaling_points, others = dict[str, list[ScalingMeasurement]](), list[Mapping[str, Any]]()
    for series in bench.series:
        if points := _throughput_points(series):
            name = str(series.get("name")).removeprefix(SCALING_PREFIX).strip("-")  # of `scaling-strong`
            scaling_points[f"{name} {SCALING_PREFIX}".strip()] = points
        else:
            others.append(series)
    if any(point.low is not None or point.high is not None for points in scaling_points.values() for point in points):
        blocks.append(Paragraph(text=CONFIDENCE_BARS_TEXT))
    blocks += compare.scaling_blocks(scaling_points, name=f"bench-{number}-scaling")
    for index, series in enumerate(others, 1):
        blocks += plots.render_panels(f"bench-{number}-{index}", [_series_panel(series)], of=bench.name)
    return Section(title=f"Bench {bench.name}", blocks=blocks)


BENCH_COLUMNS: Final = ("#", "measured", "target", "reached", "value", "95 % CI", "of")


def _bench_cells(row: Mapping[str, Any]) -> list[str]:
    target_cells = [_format_json_value(row.get(key)) for key in ("row", "what", "target")]
    value, low, high = (finite_or_nan(row.get(key)) for key in ("value", "low", "high"))
    if not math.isfinite(value):
        reason = _format_json_value(row.get("missing", "no reason given"))
        return [*target_cells, "-", f"{NOT_MEASURED}: {reason}", "", ""]
    reached = row.get("holds")
    interval = format_bounds(low, high, sure=row.get("sure") is not False) if low < high else ""
    value_text = f"{format_number(value)} {_format_json_value(row.get('unit', ''))}".rstrip()
    return [
        *target_cells,
        format_reached(reached if isinstance(reached, bool) else None, target_cells[2]).lower(),
        value_text,
        interval,
        _format_json_value(row.get("of", "")),
    ]


def _target_ratio(row: Mapping[str, Any]) -> TargetRatio | None:
    """The ratio of a row's value to its target, such as `≥ 0.98` or `≤ 40 µs`.

    None without numbers.
    """
    sign, _, target_text = _format_json_value(row.get("target")).partition(" ")
    value, low, high = (finite_or_nan(row.get(key)) for key in ("value", "low", "high"))
    try:
        target = float(target_text.partition(" ")[0])
    except ValueError:
        return None
    if sign not in ("≥", "≤") or not math.isfinite(value) or not math.isfinite(target):
        return None
    share, *spread = (
        share_of_target(edge if math.isfinite(edge) else value, target, at_least=sign == "≥")
        for edge in (value, low, high)
    )
    name = f"{_format_json_value(row.get('row'))} {_format_json_value(row.get('what'))}"
    return TargetRatio(name=name, share=share, low=min(spread), high=max(spread), met=row.get("holds") is True)


MIN_VALUE: Final = 1e-3  # in any unit: a logarithmic axis cannot show 0
MET_COLOR, MISSED_COLOR = "#009E73", "#D55E00"
RATIOS_WIDTH, RATIO_ROW_HEIGHT = 7.2, 0.42  # inches: width of the picture, height of one row


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRatio:
    """A measured value as a share of its target; above 1 is better. low, high: its spread.

    met: as the bench decided, for some rows by their median, for others by a bound of their spread.
    """

    name: str
    share: float
    low: float
    high: float
    met: bool


def share_of_target(value: float, target: float, *, at_least: bool) -> float:
    """The value relative to the target, so that above 1 is better. Only 0 reaches a target of 0.

    at_least: whether more is better.
    """
    measured, target = max(value, MIN_VALUE), max(target, MIN_VALUE)
    return measured / target if at_least else target / measured


@plot
def draw_ratios(figure: Figure, title: str, rows: Sequence[TargetRatio]) -> None:
    """Draw a PNG with a dot for each row, right of 1 if the value is better than the target."""
    axes = make_axes(figure, width=RATIOS_WIDTH, height=1.1 + RATIO_ROW_HEIGHT * max(1, len(rows)))
    axes.set_title(shorten_middle(title, 90))
    axes.set_xscale("log")
    axes.axvline(1.0, color=GRAY, linewidth=1.2)
    for y, row in enumerate(rows):
        colour = MET_COLOR if row.met else MISSED_COLOR
        axes.plot([row.low, row.high], [y, y], color=colour, linewidth=4, alpha=0.35, solid_capstyle="butt")
        axes.plot([row.share], [y], color=colour, marker="o" if row.met else "X", linestyle="")
    axes.set_yticks(range(len(rows)), [shorten_middle(row.name, 60) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlabel("times the target (right of the line: reached)")
    axes.xaxis.set_major_formatter("{x:g}")


def _throughput_points(series: Mapping[str, Any]) -> list[ScalingMeasurement]:
    lines = _series_lines(series)
    if not str(series.get("name")).startswith(SCALING_PREFIX) or THROUGHPUT_KEY not in lines:
        return []
    low, high, speed_ups = (dict(lines.get(name, ())) for name in ("low", "high", "speed-up"))
    return [
        ScalingMeasurement(
            processes=int(x), images_per_s=y, speed_up=speed_ups.get(x), low=low.get(x), high=high.get(x)
        )
        for x, y in lines[THROUGHPUT_KEY]
        if 1 <= x < 10**7
    ]


def _series_panel(series: Mapping[str, Any]) -> Panel:
    lines, dashed = _series_lines(series), series.get("dashed")
    limits = {str(name) for name in dashed} if isinstance(dashed, list) else set()
    x_values = sorted({x for line in lines.values() for x, _ in line})
    return Panel(
        title=_format_json_value(series.get("title")),
        x=_format_json_value(series.get("x")),
        y=_format_json_value(series.get("y")),
        series=[
            PlotSeries(
                name=name,
                x=[x for x, _ in line],
                y=[y for _, y in line],
                style="points" if name not in limits else "ideal" if name == "ideal" else "limit",
                colour=index,
            )
            for index, (name, line) in enumerate(lines.items())
        ],
        ticks=x_values if len(x_values) <= MAX_TICKS else (),
        log_x=_log_base(series, "log_x", x_values),
        log_y=_log_base(series, "log_y", [y for line in lines.values() for _, y in line]),
    )


def _log_base(series: Mapping[str, Any], key: str, values: Sequence[float]) -> int | None:
    """The base of a logarithmic axis; None if a value is not above 0."""
    return 10 if series.get(key) is True and all(value > 0 for value in values) else None


def _series_lines(series: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """The points of each line, without those that are not two numbers."""
    lines = series.get("lines")
    parsed: dict[str, list[tuple[float, float]]] = {}
    for name, points in lines.items() if isinstance(lines, dict) else ():
        pairs = (
            [pair for pair in points if isinstance(pair, list) and len(pair) == 2] if isinstance(points, list) else []
        )
        numbers = [(finite_or_nan(x), finite_or_nan(y)) for x, y in pairs]
        parsed[str(name)] = [(x, y) for x, y in numbers if math.isfinite(x) and math.isfinite(y)]
    return {name: line for name, line in parsed.items() if line}


def _only_objects(value: Any) -> list[Mapping[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _format_json_value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
