"""This program writes the figures of bench.json into docs/evidence/measurements/, into a file of this machine, day and
commit, and the tables of docs/evidence/performance.md from all these files: a row for each machine, the newest, with
what earlier days gave.

python bench/write_page.py build/bench/bench.json
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.measurements import Target, format_bounds, format_reached
from bench.targets import TARGETS
from train.report.read import format_number

ROOT = Path(__file__).parents[1]
PAGE, MEASUREMENTS = ROOT / "docs/evidence/performance.md", ROOT / "docs/evidence/measurements"
BEGIN, END = "<!-- begin of {}: written by bench/write_page.py -->", "<!-- end of {} -->"
HEAD = ("#", "measured", "value", "95 % interval", "target", "reached", "measured on", "earlier")
# Each table, and the devices of the targets in it.
TABLES = {"cpu": ("cpu", "both"), "gpu": ("gpu", "both")}
MISSING = "not measured"
Json = Mapping[str, Any]


def format_row(row: Json, machine: Json, earlier: Sequence[str]) -> list[str]:
    """The cells of one row of a file. earlier: values of other days on the same machine."""
    commit = row.get("commit")
    where = [f"{_device_name(machine)}; torch {machine['torch']}", machine["date"], *([commit] if commit else [])]
    return [
        row["row"],
        row["what"],
        f"{format_number(row['value'])} {row['unit']}".rstrip(),
        format_bounds(row["low"], row["high"], sure=row["sure"]) if row["of"] > 1 else "",
        row["target"],
        format_reached(row["holds"], row["target"]),
        ", ".join(where),
        ", ".join(earlier),
    ]


def format_unmeasured(number: str, target: Target) -> list[str]:
    """The cells of a row that nobody has measured yet."""
    return [number, target.what, MISSING, "", str(target), "-", "", ""]


def update_page(text: str, folder: Path = MEASUREMENTS) -> str:
    """The page with all targets, and with the values of the files in `folder`."""
    files = sorted((json.loads(path.read_text()) for path in folder.glob("*.json")), key=_date)
    for table, devices in TABLES.items():
        runs = defaultdict[tuple[str, ...], list[tuple[Json, Json]]](list)
        for file in files:
            if (file["machine"]["device"] == "cpu") == (table == "cpu"):
                for row in filter(_has_target, file["rows"]):
                    name, *compared = _row_identity(row)
                    runs[name, _device_name(file["machine"]), *compared].append((row, file["machine"]))
        measured = {name for name, *_ in runs}
        lines = [
            (name, format_row(*days[-1], [f"{format_number(row['value'])} ({_day(of)})" for row, of in days[:-1]]))
            for (name, *_), days in runs.items()
        ]
        lines += [
            (number, format_unmeasured(number, target))
            for number, target in TARGETS.items()
            if target.where in devices and number not in measured
        ]
        text = _with_table(text, table, [cells for _, cells in sorted(lines, key=lambda line: _sort_key(line[0]))])
    return text


def _row_identity(row: Json) -> tuple[str, ...]:
    """The row's name, its images and the missing peers: figures that differ in one of them are not compared."""
    return row["row"], *(str(row["facts"].get(key)) for key in ("photos", "not_installed"))


def _has_target(row: Json) -> bool:
    """Whether the row is still measured, or is a relative of one ("14 strong, 8")."""
    return _first_word(row["row"]) in TARGETS


def _first_word(name: str) -> str:
    return re.split("[ ,]", name)[0]


def _date(file: Json) -> str:
    return str(file["machine"]["date"])


def _day(machine: Json) -> str:
    return str(machine["date"][5:])


def _with_table(text: str, table: str, rows: Sequence[Sequence[str]]) -> str:
    begin, end = BEGIN.format(table), END.format(table)
    before, _, after = re.split(f"{re.escape(begin)}|{re.escape(end)}", text)
    lines = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    head = [f"| {' | '.join(HEAD)} |", "|" + " --- |" * len(HEAD)]
    return f"{before}{begin}\n" + "\n".join([*head, *lines]) + f"\n{end}{after}"


def _sort_key(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Rows are in the order of the targets, each followed by its relatives ("14 strong, 8"); numbers by their size."""
    numbers, first = list(TARGETS), _first_word(name)
    parts = [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
    return (numbers.index(first) if first in numbers else len(numbers), parts)


def _device_name(machine: Json) -> str:
    return str(machine["cpu"] if machine["device"] == "cpu" else machine["device"])


def write_measurements(results: Json, folder: Path) -> Path:
    """All figures as a file in `folder`; earlier rows and series of the same machine and day stay, also those of other
    images. Each row keeps the commit of the checkout, which ends with -dirty if files were changed."""
    describe = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    commit = subprocess.run(describe, capture_output=True, text=True).stdout.strip()
    name = re.sub(r"[^a-z0-9]+", "-", f"{_device_name(results['machine'])} {results['machine']['date']}".lower())
    path = folder / f"{name}.json"
    earlier = json.loads(path.read_text()) if path.exists() else {}
    rows = {_row_identity(row): row for row in earlier.get("rows", ())}
    rows |= {_row_identity(row): {**row, "commit": commit} for row in results["rows"] if row["value"] is not None}
    series = {entry["name"]: entry for entry in (*earlier.get("series", ()), *results.get("series", ()))}
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
    if results is not None:
        write_measurements(results, MEASUREMENTS)
    PAGE.write_text(update_page(PAGE.read_text()))
