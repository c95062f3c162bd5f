"""What a bench found becomes a table for people and one JSON object for programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from train.bench.pairs import Estimate
from train.bench.rows import Found, Row, Series

HEAD: Final = ("#", "measured", "value", "95 % sure", "of", "target", "reached")
VERDICT: Final = {True: "yes", False: "NO", None: "-"}


def as_json(found: Sequence[Found], machine: Mapping[str, Any]) -> dict[str, Any]:
    """Everything: rows, series, and the machine that they hold for."""
    return {
        "machine": dict(machine),
        "rows": [one.as_json() for one in found if isinstance(one, Row)],
        "series": [one.as_json() for one in found if isinstance(one, Series)],
    }


def markdown(found: Sequence[Found], machine: Mapping[str, Any]) -> str:
    """A table of the rows, one of each series, and a line about the machine."""
    parts = [", ".join(f"{name} {value}" for name, value in machine.items())]
    rows = [one for one in found if isinstance(one, Row)]
    if rows:
        parts.append(table(HEAD, [cells(row) for row in rows]))
    parts += [_series(one) for one in found if isinstance(one, Series)]
    return "\n\n".join(parts) + "\n"


def cells(row: Row) -> list[str]:
    """One line of the table."""
    asked = [row.target.told(), VERDICT[row.holds]]
    if row.found is None:
        return [row.number, row.target.what, f"not measured: {row.missing}", "", "", *asked]
    found = row.found
    between = spread(found.low, found.high, sure=found.sure) if found.of > 1 else ""
    return [row.number, row.target.what, said(found, row.target.unit), between, str(found.of), *asked]


def said(found: Estimate, unit: str) -> str:
    """1.03, 12.4 µs."""
    return f"{short(found.value)} {unit}".rstrip()


def spread(low: float, high: float, *, sure: bool) -> str:
    """The bounds; of too few values to be sure of any, their range."""
    return f"{'' if sure else 'range '}{short(low)} to {short(high)}"


def short(value: float) -> str:
    """Three digits that count, thousands with a comma."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns are aligned, so that it reads on a terminal too."""
    clean = [[cell.replace("|", "\\|") for cell in line] for line in (head, *lines)]
    widths = [max(len(line[column]) for line in clean) for column in range(len(head))]
    told = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in clean]
    rule = " | ".join("-" * max(3, width) for width in widths)
    return "\n".join(f"| {line} |" for line in (told[0], rule, *told[1:]))


def _series(series: Series) -> str:
    places = sorted({x for line in series.lines.values() for x, _ in line})
    values = {name: dict(line) for name, line in series.lines.items()}
    lines = [
        [short(x), *(short(values[name][x]) if x in values[name] else "" for name in series.lines)] for x in places
    ]
    return f"{series.title} ({series.y})\n\n{table([series.x, *series.lines], lines)}"
