"""What was recorded of GPUs while a run trained becomes curves over time and a table of means and peaks."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from train.plotting import panels
from train.plotting.panels import Panel, Series
from train.report import drawn
from train.report.document import Block, Section, Table, Words
from train.report.figures import NOT, short
from train.report.reading import Event, Run, number


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One measured value: its name for people, its unit, and how many of the recorded unit make one of it."""

    name: str
    unit: str
    per: float = 1.0


# Keys of the lines `{"event": "gpu", "gpu": "node01/0", "time": ...}` in metrics.jsonl.
KINDS: Final[Mapping[str, Kind]] = {
    "utilisation_percent": Kind(name="GPU use", unit="%"),
    "memory_bytes": Kind(name="Memory", unit="GiB", per=2**30),
    "power_w": Kind(name="Power", unit="W"),
    "temperature_c": Kind(name="Temperature", unit="°C"),
}
TITLE: Final = "GPU use"
ONE_BY_ONE: Final = panels.MOST  # more GPUs are drawn faintly, in one colour


def section(run: Run) -> Section:
    """Curves and a table; a line where nothing was recorded."""
    by_gpu = recorded(run)
    if not by_gpu:
        why = "Not measured: this run has no lines about GPUs in metrics.jsonl."
        return Section(title=TITLE, blocks=[Words(text=why)])
    since = min(number(event.get("time")) for events in by_gpu.values() for event in events)
    shown = [panel for key in KINDS if (panel := _panel(key, by_gpu, since)) is not None]
    blocks: list[Block] = []
    if shown:
        blocks += drawn.pictures("gpus", shown, of=f"{len(by_gpu)} GPUs")
    return Section(title=TITLE, blocks=[*blocks, table(by_gpu)])


def compared(runs: Sequence[Run]) -> Section | None:
    """One line for each run, over all its GPUs; None where no run has recorded any."""
    by_run = {run.name: [event for events in recorded(run).values() for event in events] for run in runs}
    known = {name: events for name, events in by_run.items() if events}
    return Section(title=TITLE, blocks=[table(known, "run")]) if known else None


def recorded(run: Run) -> dict[str, list[Event]]:
    """The lines of each GPU, by its name, in the order of time."""
    found: dict[str, list[Event]] = {}
    timed = [event for event in run.events.get("gpu", ()) if math.isfinite(number(event.get("time")))]
    for event in sorted(timed, key=lambda event: number(event["time"])):
        found.setdefault(str(event.get("gpu")), []).append(event)
    return dict(sorted(found.items(), key=lambda one: _counted(one[0])))


def _counted(name: str) -> list[tuple[int, str]]:
    """node01/2 before node01/10."""
    parts = re.findall(r"[0-9]{1,15}|[^0-9]+|[0-9]+", name)
    return [(int(part), "") if part.isascii() and part.isdecimal() else (-1, part) for part in parts]


def table(by_gpu: Mapping[str, Sequence[Event]], what: str = "GPU") -> Table:
    """Mean and highest value of each kind, by GPU (or by what else the names are of)."""
    keys = [key for key in KINDS if any(_values(events, key) for events in by_gpu.values())]
    head = [what, *(f"{KINDS[key].name}, {KINDS[key].unit}: {what}" for key in keys for what in ("mean", "highest"))]
    rows = [[name, *(cell for key in keys for cell in _cells(_values(events, key)))] for name, events in by_gpu.items()]
    return Table(head=head, rows=rows)


def _panel(key: str, by_gpu: Mapping[str, Sequence[Event]], since: float) -> Panel | None:
    kind = KINDS[key]
    curves = {name: _curve(events, key, since) for name, events in by_gpu.items() if _values(events, key)}
    if not curves:
        return None
    if len(curves) > ONE_BY_ONE:
        series = [Series(name=name, x=x, y=y, style="faint", colour=0) for name, (x, y) in curves.items()]
    else:
        series = [Series(name=name, x=x, y=y, colour=at) for at, (name, (x, y)) in enumerate(curves.items())]
    top = 105.0 if kind.unit == "%" else None
    return Panel(title=kind.name, x="minutes", y=kind.unit, series=series, from_zero=True, top=top)


def _curve(events: Sequence[Event], key: str, since: float) -> tuple[list[float], list[float]]:
    minutes = [(number(event.get("time")) - since) / 60 for event in events]
    return minutes, [number(event.get(key)) / KINDS[key].per for event in events]


def _values(events: Sequence[Event], key: str) -> list[float]:
    return [value / KINDS[key].per for event in events if math.isfinite(value := number(event.get(key)))]


def _cells(values: Sequence[float]) -> tuple[str, str]:
    return (short(fmean(values)), short(max(values))) if values else (NOT, NOT)
