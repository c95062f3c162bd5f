"""All bad inputs that the tests know, by theme."""

from __future__ import annotations

from bad import commands, configs, datasets, environs, fetching, folders, meeting, own, reports, saved, using
from bad.case import Case

THEMES: dict[str, list[Case]] = {
    "config": configs.CASES,
    "environ": environs.CASES,
    "command": commands.CASES,
    "data": datasets.CASES,
    "own": own.CASES,
    "saved": saved.CASES,
    "fetch": fetching.CASES,
    "rank": meeting.CASES,
    "folder": folders.CASES,
    "report": reports.CASES,
    "using": using.CASES,
}


def cases() -> list[Case]:
    """All of them."""
    return [case for theme in THEMES.values() for case in theme]
