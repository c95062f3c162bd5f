"""What the proofs left under build/reliability/ becomes the tables of docs/evidence/reliability.md; the rest stays."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from trials import KEPT, ROOT

PAGE = ROOT / "docs" / "evidence" / "reliability.md"
BEGIN, END = "<!-- begin of {}: written by tests/reliability/page.py -->", "<!-- end of {} -->"
# Command -> its trials.
ASKED = {
    "chaos": "66 of the 73 faults of failures.md, 5 times",
    "bitexact": "200 kills at random times on 1, 2 and 4 ranks",
    "crashpoints": "each system call of a commit, failed and killed",
    "bitrot": "10,000 flipped bits",
    "badinputs": "300 bad inputs or more",
    "preempt": "jobs on a real Slurm, with the real image",
    "detect": "dead and silent ranks",
}
# Fact of a summary -> how the page words it.
DETAILS = {
    "rows": "{} faults",
    "n": "N={}",
    "share": "SHARE={}",
    "steps_lost_when_told_to_stop": "steps lost when told to stop: {}",
    "steps_lost_when_killed": "steps lost when killed: {}",
    "saves_under_linuxproc": "saves under linuxproc: {}",
    "limit_s": "limit of a hang: {} s",
    "worst_named_ms": "a death was named within {} ms",
    "worst_after_limit_s": "a hang within {} s of its limit",
}
# Facts of a summary that have columns of their own.
COLUMNS = ("summary", "trials", "wrong", "seconds", "machine", "date")
LONGEST = 60  # of one such fact
Line = Mapping[str, Any]


def read(path: Path) -> tuple[list[Line], Line] | None:
    """(trials, summary) of a proof; without a summary where it was not run to its end."""
    if not path.exists():
        return None
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    whole = bool(lines) and "summary" in lines[-1]
    return (lines[:-1], lines[-1]) if whole else (lines, {})


def proof(name: str, trials: Sequence[Line], summary: Line) -> list[str]:
    """The cells of one command's row."""
    seen = f"{summary['trials'] - summary['wrong']:,} of {summary['trials']:,}"
    if name == "bitrot":
        flips = [trial for trial in trials if trial["row"].startswith("flip a bit")]
        seen = f"{sum(t['observed'] for t in flips):,} of {sum(t['expected'] for t in flips):,} flips seen; {seen}"
    facts = ((key, _words(value)) for key, value in summary.items() if key not in COLUMNS and value)
    worded = (DETAILS.get(key, f"{key} {{}}").format(value) for key, value in facts)
    details = "; ".join(text for text in worded if len(text) <= LONGEST)
    seconds = f"{summary['seconds']:,.0f} s"
    return [f"`make {name}`", ASKED[name], seen, details, summary["date"], f"{summary['machine']}, {seconds}"]


def chaos_rows(trials: Sequence[Line]) -> dict[str, list[str]]:
    """The cells of each fault's row."""
    rows: dict[str, list[Line]] = {}
    for trial in trials:
        rows.setdefault(trial["row"], []).append(trial)
    return {row: _fault(row, tried) for row, tried in rows.items()}


def _fault(row: str, tried: Sequence[Line]) -> list[str]:
    codes = Counter(str(trial["observed"]) for trial in tried)
    wrong = sum(not trial["ok"] for trial in tried)
    how = tried[0]["injector"].replace("|", "\\|")
    seen = ", ".join(f"{code} ({times}x)" if len(codes) > 1 else code for code, times in codes.items())
    seen += f"; **{wrong} of {len(tried)} not as specified**" if wrong else ""
    return [row, how if len(how) < 90 else how[:87] + "...", tried[0]["process"], seen]


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(inner)}" for key, inner in value.items())
    return " ".join(map(_words, value)) if isinstance(value, list) else str(value)


def merged(text: str, table: str, head: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    """The page with these rows in a table, by their first cell; rows of earlier runs stay."""
    begin, end = BEGIN.format(table), END.format(table)
    before, inside, after = re.split(f"{re.escape(begin)}|{re.escape(end)}", text)
    old = {line.split(" | ")[0].removeprefix("| "): line for line in inside.strip().splitlines()[2:]}
    new = old | {name: f"| {' | '.join(map(str, cells))} |" for name, cells in rows.items()}
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head), *(new[name] for name in sorted(new, key=_order))]
    return f"{before}{begin}\n{chr(10).join(lines)}\n{end}{after}"


def _order(name: str) -> tuple[int, str]:
    commands = [f"`make {command}`" for command in ASKED]
    return (commands.index(name) if name in commands else int(name) if name.isdecimal() else 999, name)


def written(text: str, folder: Path = KEPT) -> str:
    """The page with what `folder` holds."""
    found = {name: lines for name in ASKED if (lines := read(folder / f"{name}.jsonl"))}
    proofs = {f"`make {name}`": proof(name, *lines) for name, lines in found.items() if lines[1]}
    text = merged(text, "proofs", ("command", "trials", "as specified", "details", "date", "machine"), proofs)
    faults = chaos_rows(found["chaos"][0]) if "chaos" in found else {}
    return merged(text, "faults", ("#", "how it is made", "where", "exit code"), faults)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
