"""Findings to what a person reads, and to the one JSON object that a program reads."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from entrypoint.doctor.findings import Finding, failed
from entrypoint.errors import CONTROL, ONE_LINE

WORDS = {"ok": "ok", "warn": "warn", "fail": "FAIL"}
_COLOURS = {"ok": "32", "warn": "33", "fail": "1;31"}  # green, yellow, bold red
_FIX = "fix:"
_NARROWEST = 30  # below that, folding helps nobody


def as_json(findings: Sequence[Finding]) -> dict[str, Any]:
    """The object that `doctor --json` promises."""
    return {"findings": [asdict(finding) for finding in findings], "failed": failed(findings)}


def as_text(findings: Sequence[Finding], *, colour: bool, columns: int | None = None) -> str:
    """A line for each finding, one with the fix under each that is not ok, and a last one that counts.

    columns: of the terminal, for which long lines are folded; None folds none, as grep wants it.
    """
    width = max((len(finding.name) for finding in findings), default=0)
    lines = [line for finding in findings for line in _lines(finding, width, colour, columns)]
    return "\n".join([*lines, "", verdict(findings)])


def as_lines(findings: Sequence[Finding], *, colour: bool, columns: int | None = None) -> list[str]:
    """Only those that are not ok, for the beginning of a training. columns: as in `as_text`."""
    shown = [finding for finding in findings if finding.state != "ok"]
    return [line for finding in shown for line in _lines(finding, len(finding.name), colour, columns)]


def coloured(terminal: bool, environ: Mapping[str, str]) -> bool:
    """Whether to colour what is written to a stream. terminal: whether it is one. Source: no-color.org."""
    return terminal and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def verdict(findings: Sequence[Finding]) -> str:
    """How it went, in one line."""
    count = {state: sum(finding.state == state for finding in findings) for state in WORDS}
    if count["fail"]:
        return f"{count['fail']} would break a training here, {count['warn']} to look at, {count['ok']} ok"
    if count["warn"]:
        return f"nothing would break a training here; {count['warn']} to look at, {count['ok']} ok"
    return f"all {count['ok']} ok"


def _lines(finding: Finding, width: int, colour: bool, columns: int | None = None) -> list[str]:
    word = WORDS[finding.state].ljust(4)
    if colour:
        word = f"\x1b[{_COLOURS[finding.state]}m{word}\x1b[0m"
    indent = " " * (4 + 2 + width + 2)
    text = _folded(_plain(finding.text), indent, columns)
    fix = _folded(f"{_FIX} {_plain(finding.fix)}", indent, columns) if finding.fix else []
    first = f"{word}  {finding.name:<{width}}  {text[0]}"
    return [first, *(indent + line for line in (*text[1:], *fix))]


def _folded(text: str, indent: str, columns: int | None) -> list[str]:
    """At spaces only: what is to be copied stays whole."""
    room = (columns or 0) - len(indent)
    if room < _NARROWEST:
        return [text]
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]


def _plain(text: str) -> str:
    """A variable's value may hold what a terminal would obey."""
    return text.translate(CONTROL).translate(ONE_LINE)
