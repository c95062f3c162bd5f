"""All bad inputs, by theme, and the places of the code that no input of one machine without a GPU reaches."""

from __future__ import annotations

from bad import commands, configs, datasets, environs, fetching, meeting, own, saved
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
}
# Place -> why no case is there. What is meant is tested elsewhere, by name.
UNREACHED: dict[str, str] = {}
MOST = 10  # cases that end at one place: a figure is no proof where one check is asked a hundred times


def cases() -> list[Case]:
    """All of them."""
    return [case for theme in THEMES.values() for case in theme]
