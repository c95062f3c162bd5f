"""A run's folder, finished or not, becomes values that were looked at: a report never fails because of a bad line."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from typing import Any, Final

from entrypoint import ExitCode, Failure
from train.checkpoint import shelf
from train.record import exitfile, metrics, record, starts
from train.record.exitfile import Ending
from train.settings import idle, schema, yaml12

CONFUSION: Final = "confusion.json"
CONFUSION_BEST: Final = "confusion-best.json"
MOST_CLASSES: Final = 1000
Event = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """matrix: row by label, column by answer; after `step`."""

    step: int | None
    classes: tuple[str, ...]
    matrix: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What a run's folder says. config: by `section.key`. facts: run.json. events: of metrics.jsonl, by kind.

    idle: keys of the configuration that had no effect. kept: checkpoints that are in the folder.
    ending: of the last start that trained: a later one that was refused did not end the run.
    cut_off: of a run without an ending, what is known of how it was killed. missing: what could not be read, in words.
    confusion: of the last evaluation; confusion_best: of the best one, None where an older version did not keep it.
    """

    folder: Path
    name: str
    config: Mapping[str, Any]
    idle: frozenset[str]
    facts: Mapping[str, Any]
    events: Mapping[str, Sequence[Event]]
    ending: Ending | None
    cut_off: str | None
    confusion: Confusion | None
    confusion_best: Confusion | None
    kept: int
    missing: tuple[str, ...]

    def fact(self, *keys: str) -> Any:
        """A value inside run.json; None where there is none."""
        found: Any = self.facts
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    @property
    def starts(self) -> list[Event]:
        """Oldest first; those whose step is known."""
        return [start for start in _starts(self.facts) if whole(start.get("step")) is not None]

    @property
    def world_size(self) -> int | None:
        """Of the last start that has trained."""
        return whole(self.fact("world", "world_size"))

    @property
    def classes(self) -> int | None:
        """How many there are; None where nothing says it."""
        return whole(self.fact("training", "classes")) or (len(self.confusion.classes) if self.confusion else None)

    @property
    def steps_per_epoch(self) -> int | None:
        """None where the record of an older version does not say it."""
        return whole(self.fact("training", "steps_per_epoch")) or None

    def column(self, kind: str, key: str) -> tuple[list[float], list[float]]:
        """(steps, values) of one curve, in the order of steps; NaN where a value is no number."""
        events = [event for event in self.events.get(kind, ()) if whole(event.get("step")) is not None]
        points = sorted(
            ((float(event["step"]), number(event.get(key))) for event in events), key=lambda point: point[0]
        )
        return [step for step, _ in points], [value for _, value in points]


def read(folder: Path, name: str | None = None) -> Run:
    """What is there of the run in `folder`, called `name` in the report.

    Raises:
        Failure: NO_INPUT, where nothing there is a run's.
    """
    if not any(_is_file(folder / known) for known in (record.RUN, record.CONFIG, metrics.NAME)):
        raise Failure(
            f"{folder} is not a run's folder",
            found=_seen(folder),
            expected=f"a folder with {record.RUN}, {record.CONFIG} or {metrics.NAME}; or the JSON of `train bench`",
            fix="`train where --config FILE` prints the folder of a run",
            code=ExitCode.NO_INPUT,
        )
    config, facts, events = _config(folder), _facts(folder), _events(folder)
    there = {record.CONFIG: config, record.RUN: facts, metrics.NAME: events}
    return Run(
        folder=folder,
        name=name or _resolved(folder).name,
        config=config or {},
        idle=_idle(folder) if config else frozenset(),
        facts=facts or {},
        events=events or {},
        ending=starts.of_the_training(_starts(facts), _said(folder)),
        cut_off=exitfile.unfinished(folder),
        confusion=_confusion(folder / CONFUSION),
        confusion_best=_confusion(folder / CONFUSION_BEST),
        kept=_kept(folder / "checkpoints"),
        missing=tuple(f"{file} is not there or cannot be read" for file, found in there.items() if found is None),
    )


def read_all(folders: Sequence[str]) -> tuple[list[Run], list[str]]:
    """Runs by the names of their folders; by what was typed, where two folders have the same name. Each once.

    Of several, what is none is left out; the second list says which, and why.

    Raises:
        Failure: as `read`, where none is left.
    """
    places: dict[Path, str] = {}
    for folder in folders:
        places.setdefault(_resolved(Path(folder)), folder)
    names, runs, failures = Counter(place.name for place in places), [], []
    for place, typed in places.items():
        try:
            runs.append(read(Path(typed), place.name if names[place.name] == 1 else typed))
        except Failure as failure:
            failures.append(failure)
    if failures and not runs:
        raise failures[0]
    return runs, [f"{failure.what}: {failure.found}" for failure in failures]


def number(value: Any) -> float:
    """A finite number, or NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value) if math.isfinite(value) else math.nan
    except OverflowError:
        return math.nan


def whole(value: Any) -> int | None:
    """A whole number that can be counted to, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15 else None


def _config(folder: Path) -> dict[str, Any] | None:
    """By `section.key`: not through the schema, since another version may have written it."""
    try:
        found = yaml12.read_file(folder / record.CONFIG).value
    except Failure:
        return None
    sections = found.items() if isinstance(found, dict) else ()
    return {f"{name}.{key}": value for name, keys in sections if isinstance(keys, dict) for key, value in keys.items()}


def _idle(folder: Path) -> frozenset[str]:
    """None that is known, of a configuration of another version."""
    try:
        return idle.without_effect(schema.build(yaml12.read_file(folder / record.CONFIG), record.CONFIG))
    except Failure:
        return frozenset()


def _facts(folder: Path) -> dict[str, Any] | None:
    try:
        return record.read_run(folder) if _is_file(folder / record.RUN) else None
    except RecursionError:
        return None


def _starts(facts: Mapping[str, Any] | None) -> list[Event]:
    """All of them, also those that never knew their step."""
    found = (facts or {}).get("starts")
    return [start for start in found if isinstance(start, dict)] if isinstance(found, list) else []


def _said(folder: Path) -> Ending | None:
    return exitfile.read(folder) if _is_file(folder / exitfile.FOLDER / exitfile.NAME) else None


def _events(folder: Path) -> dict[str, list[Event]] | None:
    path = folder / metrics.NAME
    found: dict[str, list[Event]] = {}
    if not _is_file(path):
        return None
    try:
        for event in metrics.read(path):
            found.setdefault(str(event.get("event")), []).append(event)
    except (OSError, RecursionError):
        return None
    return found


def _kept(folder: Path) -> int:
    with suppress(Failure):
        return len(shelf.steps(folder))
    return 0


def _confusion(path: Path) -> Confusion | None:
    try:
        found = json.loads(path.read_bytes()) if _is_file(path) else {}
        names, rows = found["classes"], found["matrix"]
        matrix = tuple(tuple(whole(cell) for cell in row) for row in rows)
        size = len(names)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    counts = tuple(tuple(cell for cell in row if cell is not None) for row in matrix)
    if not 0 < size <= MOST_CLASSES or [len(row) for row in counts] != [size] * size:
        return None
    return Confusion(step=whole(found.get("step")), classes=tuple(map(str, names)), matrix=counts)


def _is_file(path: Path) -> bool:
    """Not a pipe or a device, which would be read for ever."""
    try:
        return path.is_file()
    except (OSError, RuntimeError):
        return False


def _resolved(path: Path) -> Path:
    """As it was typed, where links lead nowhere."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path.absolute()


def _seen(folder: Path) -> str:
    try:
        kind = folder.stat().st_mode
        return "a folder without them, or one that cannot be read" if S_ISDIR(kind) else "a file"
    except FileNotFoundError:
        return "it does not exist"
    except OSError as error:
        return error.strerror or type(error).__name__
