"""What `train bench` has left in bench.json becomes the tables of docs/performance.md; rows not measured now stay.

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

from train.bench import output, rows
from train.bench.rows import Target

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BEGIN, END = "<!-- begin of {}: written by bench/write_page.py -->", "<!-- end of {} -->"
HEAD = ("#", "measured", "value", "95 % sure", "target", "reached", "with", "on", "date")
# A table for each kind of device, and what its targets ask for.
TABLES = {"cpu": ("cpu", "both"), "gpu": ("gpu", "both")}
MISSING = "not measured"
VERDICT = {True: "yes", False: "NO", None: "-"}
Json = Mapping[str, Any]


def cells(row: Json, machine: Json) -> list[str]:
    """One line of a table."""
    unit, value = row["unit"], row["value"]
    asked = [row["target"], VERDICT[row["holds"]]]
    between = output.spread(row["low"], row["high"], sure=row["sure"]) if row["of"] > 1 else ""
    facts = ", ".join(f"{name} {_word(fact)}" for name, fact in row["facts"].items() if fact is not None)
    where = machine["cpu"] if machine["device"] == "cpu" else machine["device"]
    on = f"{where}; torch {machine['torch']}"
    return [
        row["row"],
        row["what"],
        f"{output.short(value)} {unit}".rstrip(),
        between,
        *asked,
        facts,
        on,
        machine["date"],
    ]


def unmeasured(number: str, target: Target) -> list[str]:
    """The line of a row that nobody has measured yet."""
    return [number, target.what, MISSING, "", target.told(), "-", "", "", ""]


def written(text: str, told: Json | None = None) -> str:
    """The page with all targets, and with what `told` (bench.json) has measured."""
    if told is not None:
        machine = told["machine"]
        found = {row["row"]: cells(row, machine) for row in told["rows"] if row["value"] is not None}
        text = merged(text, "cpu" if machine["device"] == "cpu" else "gpu", found)
    for table, places in TABLES.items():
        lines = {number: unmeasured(number, one) for number, one in rows.TARGETS.items() if one.where in places}
        text = merged(text, table, lines, over=False)
    return text


def merged(text: str, table: str, lines: Mapping[str, Sequence[str]], *, over: bool = True) -> str:
    """The page with these lines in a table, by their first cell; others that were measured stay, and where not `over`,
    those of the same rows too."""
    begin, end = BEGIN.format(table), END.format(table)
    before, inside, after = re.split(f"{re.escape(begin)}|{re.escape(end)}", text)
    kept = [line for line in inside.strip().splitlines()[2:] if f"| {MISSING} |" not in line]
    old = {line.split(" | ")[0].removeprefix("| "): line for line in kept}
    new = {name: f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for name, line in lines.items()}
    both = old | new if over else new | old
    head = [f"| {' | '.join(HEAD)} |", "|" + " --- |" * len(HEAD)]
    return (
        f"{before}{begin}\n"
        + "\n".join([*head, *(both[name] for name in sorted(both, key=_order))])
        + f"\n{end}{after}"
    )


def _order(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Targets in their order, each with what was measured beside it ("14 strong, 8"); numbers by their size."""
    known, first = list(rows.TARGETS), re.split("[ ,]", name)[0]
    parts = [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]
    return (known.index(first) if first in known else len(known), parts)


def _word(fact: Any) -> str:
    return output.short(fact) if isinstance(fact, float) else str(fact)


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text()) if len(sys.argv) > 1 else None
    if given is not None and "quick" in given["machine"]:
        told = f"ERROR[64] {sys.argv[1]} is of `train bench --quick`: its values mean nothing"
        print(told, "  fix: leave --quick out", sep="\n", file=sys.stderr)
        sys.exit(64)
    PAGE.write_text(written(PAGE.read_text(), given))
