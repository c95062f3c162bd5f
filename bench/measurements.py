"""This module holds what a benchmark measured, and formats it as a table and as JSON."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from bench.estimates import Estimate
from entrypoint import Failure
from train.report.read import format_number
from train.run.record import installed_version

CPUINFO: Final = Path("/proc/cpuinfo")
CPU_MODEL: Final = re.compile(r"^model name\s*:\s*(.+)$", re.M)
GPU_NAMES_LIMIT_S: Final = 150.0
PRINT_GPU_NAMES: Final = (
    "from torch import cuda; print(*map(cuda.get_device_name, range(cuda.device_count())), sep='\\n')"
)
HEAD: Final = ("#", "measured", "value", "95 % interval", "of", "target", "reached")
REPORTED: Final = "reported"
REACHED: Final = {True: "yes", False: "NO", None: "open"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a value must reach. limit None: it is only reported. where: the device that the measurement needs."""

    what: str
    better: Literal["higher", "lower"] = "higher"
    limit: float | None = None
    unit: str = ""
    where: Literal["cpu", "gpu", "both"] = "both"

    def __str__(self) -> str:
        """≥ 0.98, ≤ 40 µs."""
        sign = "≥" if self.better == "higher" else "≤"
        return REPORTED if self.limit is None else f"{sign} {self.limit:g} {self.unit}".rstrip()

    def is_reached(self, estimate: Estimate) -> bool | None:
        """Whether the bounds of the estimate reach the limit; None without a limit, and if they hold it.

        One value of a time has no bounds: it reaches nothing.
        """
        if self.limit is None or (estimate.of == 1 and not estimate.sure):
            return None
        bounds = (estimate.low, estimate.high)
        reaches = [bound >= self.limit if self.better == "higher" else bound <= self.limit for bound in bounds]
        return reaches[0] if reaches[0] == reaches[1] else None


def format_reached(is_reached: bool | None, target: str) -> str:
    """yes, NO, open if the interval holds the target; - without one."""
    return "-" if target == REPORTED else REACHED[is_reached]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured value, or the reason why it is missing.

    number: the row's name in the table. failed: it is missing because something went wrong. facts: what JSON keeps
    next to it (absolute figures of both sides, settings): numbers and texts only.
    """

    number: str
    target: Target
    estimate: Estimate | None = None
    missing: str | None = None
    failed: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_reached(self) -> bool | None:
        """As `Target.is_reached`; None without a value."""
        return None if self.estimate is None else self.target.is_reached(self.estimate)

    def as_json(self) -> dict[str, Any]:
        """One object of `rows` in bench.json."""
        target = {"what": self.target.what, "target": str(self.target), "unit": self.target.unit}
        value = asdict(self.estimate) if self.estimate else {"value": None, "missing": self.missing}
        return {"row": self.number, **target, **value, "holds": self.is_reached, "facts": dict(self.facts)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points of a plot and of its table. lines: name -> (x, y) points; dashed: names of lines that were not
    measured (ideal, a limit)."""

    name: str
    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    dashed: Sequence[str] = ()
    log_x: bool = False
    log_y: bool = False

    def as_json(self) -> dict[str, Any]:
        """One object of `series` in bench.json."""
        return asdict(self)


Measurement = Row | Series


def reported_row(name: str, what: str, estimate: Estimate, *, unit: str = "", **facts: Any) -> Row:
    """A value without a target."""
    return Row(number=name, target=Target(what=what, unit=unit), estimate=estimate, facts=facts)


ERROR_LINE: Final = re.compile(r"ERROR\[\d+\]|[\w.]*(?:Error|Exception): ")


def failed_row(number: str, failure: Failure, target: Target) -> Row:
    """A row that this machine could have measured if a process had not failed. Its facts hold the end of the log.

    The parent of a rank ends its log with who failed first: the rank's own last error says more.
    """
    lines = (failure.found or "").strip().splitlines()
    errors = [line for line in lines if ERROR_LINE.match(line)]
    first_and_last = dict.fromkeys(lines[:1] + (errors or lines)[-1:])
    missing = "; ".join([failure.what, *first_and_last])
    return Row(number=number, target=target, missing=missing, failed=True, facts={"log": failure.found or ""})


def as_json(measurements: Sequence[Measurement], machine: Mapping[str, Any]) -> dict[str, Any]:
    """The content of bench.json: rows, series, and the machine that they were measured on."""
    return {
        "machine": dict(machine),
        "rows": [row.as_json() for row in measurements if isinstance(row, Row)],
        "series": [series.as_json() for series in measurements if isinstance(series, Series)],
    }


def format_markdown(measurements: Sequence[Measurement], machine: Mapping[str, Any]) -> str:
    """A line about the machine, a table of the rows, and one table for each series."""
    parts = [", ".join(f"{name} {value}" for name, value in machine.items())]
    rows = [row for row in measurements if isinstance(row, Row)]
    if rows:
        parts.append(format_table(HEAD, [format_cells(row) for row in rows]))
    parts += [_format_series(series) for series in measurements if isinstance(series, Series)]
    return "\n\n".join(parts) + "\n"


def format_cells(row: Row) -> list[str]:
    """One line of the table."""
    target = [str(row.target), "-" if row.estimate is None else format_reached(row.is_reached, str(row.target))]
    estimate = row.estimate
    if estimate is None:
        return [row.number, row.target.what, f"not measured: {row.missing}", "", "", *target]
    bounds = format_bounds(estimate.low, estimate.high, sure=estimate.sure) if estimate.of > 1 else ""
    value = f"{format_number(estimate.value)} {row.target.unit}".rstrip()
    return [row.number, row.target.what, value, bounds, str(estimate.of), *target]


def format_bounds(low: float, high: float, *, sure: bool) -> str:
    """The bounds; the range, if there are too few values for bounds."""
    return f"{'' if sure else 'range '}{format_number(low)} to {format_number(high)}"


def format_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns, so that it can be read on a terminal too."""
    cells = [[cell.replace("|", "\\|") for cell in line] for line in (head, *lines)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(head))]
    texts = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    rule = " | ".join("-" * max(3, width) for width in widths)
    return "\n".join(f"| {line} |" for line in (texts[0], rule, *texts[1:]))


def _format_series(series: Series) -> str:
    all_x = sorted({x for line in series.lines.values() for x, _ in line})
    values = {name: dict(line) for name, line in series.lines.items()}
    lines = [
        [format_number(x), *(format_number(values[name][x]) if x in values[name] else "" for name in series.lines)]
        for x in all_x
    ]
    return f"{series.title} ({series.y})\n\n{format_table([series.x, *series.lines], lines)}"


def describe_machine(device: str, *, now: float, quick: bool = False) -> dict[str, str]:
    """Processor, GPUs, versions and day of a measurement. GPUs are those that torch can use.

    quick: the values mean nothing, and a note says so.
    """
    facts = {"cpu": f"{_processor()}, {len(os.sched_getaffinity(0))} cores", "device": _device_names(device)}
    facts |= {name: installed_version(name) or "not installed" for name in ("torch", "accelerate")}
    facts |= {"python": platform.python_version(), "date": time.strftime("%Y-%m-%d", time.gmtime(now))}
    return facts | ({"quick": "yes, so the values mean nothing"} if quick else {})


def _processor(cpuinfo: Path = CPUINFO) -> str:
    try:
        model = CPU_MODEL.search(cpuinfo.read_text())
    except OSError:
        model = None
    return model[1].strip() if model else platform.machine()  # arm64 names no model


def _device_names(device: str, code: str = PRINT_GPU_NAMES, limit_s: float = GPU_NAMES_LIMIT_S) -> str:
    """torch's names of the GPUs that it can use, each once with its number: parts of one (MIG) have their own."""
    if device == "cpu":
        return "cpu"
    # In this process torch would hold memory of the GPU for as long as the benchmark runs.
    try:
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return device
    if child.returncode:
        return device
    counts = Counter(child.stdout.splitlines())
    return ", ".join(name if count == 1 else f"{count} x {name}" for name, count in counts.items())
