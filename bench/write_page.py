"""Writes the rows of bench.json into the tables of docs/performance.md; rows that it does not measure stay. The figures
behind the rows go into docs/measurements/, into a file of this machine and day.

python bench/write_page.py build/bench/bench.json
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.targets import TARGETS
from train.bench.measurements import REACHED, Target, format_bounds
from train.report.read import format_number

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "performance.md"
BEGIN, END = "<!-- begin of {}: written by bench/write_page.py -->", "<!-- end of {} -->"
HEAD = ("#", "measured", "value", "95 % interval", "target", "reached", "machine", "date")
# Each table, and the devices of the targets in it.
TABLES = {"cpu": ("cpu", "both"), "gpu": ("gpu", "both")}
MISSING = "not measured"
NAMED = {"rows": "row", "series": "name"}
Json = Mapping[str, Any]


def format_row(row: Json, machine: Json) -> list[str]:
    """The cells of one row of bench.json."""
    bounds = format_bounds(row["low"], row["high"], sure=row["sure"]) if row["of"] > 1 else ""
    return [
        row["row"],
        row["what"],
        f"{format_number(row['value'])} {row['unit']}".rstrip(),
        bounds,
        row["target"],
        REACHED[row["holds"]],
        f"{_device_name(machine)}; torch {machine['torch']}",
        machine["date"],
    ]


def format_unmeasured(number: str, target: Target) -> list[str]:
    """The cells of a row that nobody has measured yet."""
    return [number, target.what, MISSING, "", str(target), "-", "", ""]


def update_page(text: str, results: Json | None = None) -> str:
    """The page with all targets, and with the values of `results` (bench.json)."""
    if results is not None:
        machine = results["machine"]
        rows = {row["row"]: format_row(row, machine) for row in results["rows"] if row["value"] is not None}
        text = _update_table(text, "cpu" if machine["device"] == "cpu" else "gpu", rows)
    for table, devices in TABLES.items():
        rows = {
            number: format_unmeasured(number, target) for number, target in TARGETS.items() if target.where in devices
        }
        text = _update_table(text, table, rows, replace=False)
    return text


def _update_table(text: str, table: str, rows: Mapping[str, Sequence[str]], *, replace: bool = True) -> str:
    """The page with these rows in a table, by their first cell. Other rows that were measured stay; without `replace`,
    those of the same name stay too."""
    begin, end = BEGIN.format(table), END.format(table)
    before, inside, after = re.split(f"{re.escape(begin)}|{re.escape(end)}", text)
    measured = [line for line in inside.strip().splitlines()[2:] if f"| {MISSING} |" not in line]
    old = {line.split(" | ")[0].removeprefix("| "): line for line in measured}
    new = {name: f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for name, row in rows.items()}
    both = old | new if replace else new | old
    head = [f"| {' | '.join(HEAD)} |", "|" + " --- |" * len(HEAD)]
    lines = [*head, *(both[name] for name in sorted(both, key=_sort_key))]
    return f"{before}{begin}\n" + "\n".join(lines) + f"\n{end}{after}"


def _sort_key(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Rows are in the order of the targets, each followed by its relatives ("14 strong, 8"); numbers by their size."""
    numbers, first = list(TARGETS), re.split("[ ,]", name)[0]
    parts = [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
    return (numbers.index(first) if first in numbers else len(numbers), parts)


def _device_name(machine: Json) -> str:
    return str(machine["cpu"] if machine["device"] == "cpu" else machine["device"])


def write_measurements(results: Json, folder: Path) -> Path:
    """All figures as a file in `folder`; earlier rows and series of the same machine and day stay."""
    name = re.sub(r"[^a-z0-9]+", "-", f"{_device_name(results['machine'])} {results['machine']['date']}".lower())
    path = folder / f"{name}.json"
    earlier = json.loads(path.read_text()) if path.exists() else {}
    rows, series = ({entry[key]: entry for entry in earlier.get(part, ())} for part, key in NAMED.items())
    rows |= {row["row"]: row for row in results["rows"] if row["value"] is not None}
    series |= {one["name"]: one for one in results.get("series", ())}
    folder.mkdir(exist_ok=True)
    text = json.dumps({**results, "rows": [*rows.values()], "series": [*series.values()]}, indent=1)
    path.write_text(f"{text}\n")
    return path


if __name__ == "__main__":
    results = json.loads(Path(sys.argv[1]).read_text()) if len(sys.argv) > 1 else None
    if results is not None and "quick" in results["machine"]:
        error = f"ERROR[64] {sys.argv[1]} was measured with --quick: its values mean nothing"
        print(error, "  fix: leave --quick out", sep="\n", file=sys.stderr)
        sys.exit(64)
    PAGE.write_text(update_page(PAGE.read_text(), results))
    if results is not None:
        write_measurements(results, DOCS / "measurements")
