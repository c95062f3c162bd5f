"""The JSON of `train bench` becomes a section: its rows beside their targets, and its series as curves."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final

from entrypoint import ExitCode, Failure
from train.plotting import panels, ratios
from train.plotting.panels import Panel, Series
from train.plotting.ratios import Ratio
from train.plotting.speedup import Point
from train.report import drawn, scaling
from train.report.document import Block, Facts, Picture, Section, Table, Words
from train.report.figures import NOT, short
from train.report.reading import number

LARGEST: Final = 64 * 2**20  # bytes
SCALING: Final = "scaling"  # how series begin whose x is processes and whose line `images_per_s` is throughput
TICKS: Final = 12  # places on an axis that all have their number
THROUGHPUT: Final = "images_per_s"
BARS: Final = (
    "Bars on speed-up and efficiency are the bounds of images per second: they hold its median with 95 %, or are the "
    "range of too few blocks. They are over the median of the fewest processes, whose own spread is not in them. The "
    "95 % CI in the table above is of the speed-up itself."
)
VERDICT: Final[Mapping[Any, str]] = {True: "yes", False: "no", None: "-"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What was read: as `train.bench.output` writes it, each object looked at where it is shown."""

    name: str
    machine: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    series: Sequence[Mapping[str, Any]]


def read(path: Path) -> Bench:
    """The bench in a JSON file.

    Raises:
        Failure: NO_INPUT where it cannot be read, DATA where it is no bench.
    """
    try:
        facts = path.stat()  # of a pipe or a device, reading may never end
        found = json.loads(path.read_bytes()) if S_ISREG(facts.st_mode) and facts.st_size <= LARGEST else None
    except OSError as error:
        fix = "give a run's folder, or the file that `train bench --output DIR` wrote"
        raise Failure(f"{path} cannot be read", found=error.strerror, fix=fix, code=ExitCode.NO_INPUT) from error
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not ("rows" in found or "series" in found):
        raise Failure(
            f"{path} holds no bench",
            expected="a JSON object with rows and series",
            fix="give the bench.json that `train bench --output DIR` wrote",
            code=ExitCode.DATA,
        )
    return of(found, name=path.stem if path.stem != "bench" else f"{path.resolve().parent.name}/{path.stem}")


def of(found: Mapping[str, Any], name: str) -> Bench:
    """The bench in such an object."""
    machine = found.get("machine")
    return Bench(
        name=name,
        machine=machine if isinstance(machine, dict) else {},
        rows=_objects(found.get("rows")),
        series=_objects(found.get("series")),
    )


def section(bench: Bench, number: int = 1) -> Section:
    """The machine, the rows beside their targets, the series."""
    blocks: list[Block] = [Facts(rows={str(name): _plain(value) for name, value in bench.machine.items()})]
    if held := [ratio for row in bench.rows if (ratio := _ratio(row)) is not None]:
        png = ratios.draw("Measured against the target", held)
        alt = f"{sum(ratio.met for ratio in held)} of {len(held)} targets are reached"
        blocks.append(Picture(name=f"bench-{number}", png=png, alt=alt))
    if bench.rows:
        blocks.append(table(bench))
    return Section(title=f"Bench {bench.name}", blocks=[*blocks, *_curves(bench, number)])


def pictures(bench: Bench) -> list[Picture]:
    """Of its section: `train bench --output` keeps them beside its JSON."""
    return [block for block in section(bench).blocks if isinstance(block, Picture)]


def table(bench: Bench) -> Table:
    """Every row, those that were not measured too."""
    head = ["#", "measured", "target", "reached", "value", "95 % CI", "of"]
    return Table(head=head, rows=[_cells(row) for row in bench.rows], left=4)


def _cells(row: Mapping[str, Any]) -> list[str]:
    asked = [_plain(row.get("row")), _plain(row.get("what")), _plain(row.get("target"))]
    value, low, high = (number(row.get(key)) for key in ("value", "low", "high"))
    if not math.isfinite(value):
        return [*asked, "-", f"{NOT}: {_plain(row.get('missing', 'no reason given'))}", "", ""]
    reached = row.get("holds")
    between = f"{'range ' * (row.get('sure') is False)}{short(low)} to {short(high)}" if low < high else ""
    told = f"{short(value)} {_plain(row.get('unit', ''))}".rstrip()
    return [*asked, VERDICT[reached if isinstance(reached, bool) else None], told, between, _plain(row.get("of", ""))]


def _ratio(row: Mapping[str, Any]) -> Ratio | None:
    """A row with a value and a target in numbers, `≥ 0.98` or `≤ 40 µs`."""
    sign, _, rest = _plain(row.get("target")).partition(" ")
    value, low, high = (number(row.get(key)) for key in ("value", "low", "high"))
    try:
        target = float(rest.partition(" ")[0])
    except ValueError:
        return None
    if sign not in ("≥", "≤") or not math.isfinite(value) or not math.isfinite(target):
        return None
    spread = [edge if math.isfinite(edge) else value for edge in (low, high)]
    name = f"{_plain(row.get('row'))} {_plain(row.get('what'))}"
    met = row.get("holds") is True
    return Ratio(name=name, value=value, low=spread[0], high=spread[1], target=target, at_least=sign == "≥", met=met)


def _curves(bench: Bench, number: int) -> list[Block]:
    """Series over processes as speed-up and efficiency, the others as they are."""
    of_scaling = {_kind(one): points for one in bench.series if (points := _points(one))}
    others = [one for one in bench.series if not _points(one)]
    bars = any(point.low is not None or point.high is not None for points in of_scaling.values() for point in points)
    found: list[Block] = [Words(text=BARS)] if bars else []
    found += scaling.blocks(of_scaling, name=f"bench-{number}-scaling")
    for at, one in enumerate(others, 1):
        found += drawn.pictures(f"bench-{number}-{at}", [_panel(one)], of=bench.name)
    return found


def _kind(series: Mapping[str, Any]) -> str:
    """`scaling-strong` is strong scaling."""
    return f"{str(series.get('name')).removeprefix(SCALING).strip('-')} {SCALING}".strip()


def _points(series: Mapping[str, Any]) -> list[Point]:
    lines = _lines(series)
    if not str(series.get("name")).startswith(SCALING) or THROUGHPUT not in lines:
        return []
    low, high, paired = (dict(lines.get(name, ())) for name in ("low", "high", "speed-up"))
    return [
        Point(processes=int(x), images_per_s=y, speed_up=paired.get(x), low=low.get(x), high=high.get(x))
        for x, y in lines[THROUGHPUT]
        if 1 <= x < 10**7
    ]


def _panel(series: Mapping[str, Any]) -> Panel:
    lines, dashed = _lines(series), series.get("dashed")
    limits = {str(name) for name in dashed} if isinstance(dashed, list) else set()
    places = sorted({x for line in lines.values() for x, _ in line})
    return Panel(
        title=_plain(series.get("title")),
        x=_plain(series.get("x")),
        y=_plain(series.get("y")),
        series=[
            Series(name=name, x=[x for x, _ in line], y=[y for _, y in line], style=_style(name, limits), colour=at)
            for at, (name, line) in enumerate(lines.items())
        ],
        ticks=places if len(places) <= TICKS else (),
        log_x=_base(series, "log_x", places),
        log_y=_base(series, "log_y", [y for line in lines.values() for _, y in line]),
    )


def _style(name: str, limits: set[str]) -> panels.Style:
    if name not in limits:
        return "points"
    return "ideal" if name == "ideal" else "limit"


def _base(series: Mapping[str, Any], key: str, values: Sequence[float]) -> int | None:
    """A logarithm is for numbers above 0."""
    return 10 if series.get(key) is True and all(value > 0 for value in values) else None


def _lines(series: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """The points of each line that are two numbers."""
    lines = series.get("lines")
    found: dict[str, list[tuple[float, float]]] = {}
    for name, points in lines.items() if isinstance(lines, dict) else ():
        pairs = (
            [pair for pair in points if isinstance(pair, list) and len(pair) == 2] if isinstance(points, list) else []
        )
        both = [(number(x), number(y)) for x, y in pairs]
        found[str(name)] = [(x, y) for x, y in both if math.isfinite(x) and math.isfinite(y)]
    return {name: line for name, line in found.items() if line}


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
