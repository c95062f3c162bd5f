"""This module reads a run's folder, finished or not, and computes the values for a report.

A report never fails because of a bad line: every value is checked, and what cannot be read is
named in `RecordedRun.missing`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR
from statistics import median, quantiles
from typing import Any, Final

from entrypoint import ExitCode, Failure, redact, redact_words
from train.checkpoint import store
from train.config import checks, load
from train.data import registry
from train.logging import metrics
from train.metrics import DEFAULT_METRIC, METRICS, NOT_MEASURED, Metric, find_metric
from train.run import exit_file, record
from train.run.exit_file import ExitRecord

CONFUSION_FILE: Final = "confusion.json"
BEST_CONFUSION_FILE: Final = "confusion-best.json"
MAX_CLASSES: Final = 1000
MetricsEvent = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionMatrix:
    """matrix: row by label, column by answer; after `step`."""

    step: int | None
    classes: tuple[str, ...]
    matrix: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
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
    events: Mapping[str, Sequence[MetricsEvent]]
    ending: ExitRecord | None
    cut_off: str | None
    confusion: ConfusionMatrix | None
    confusion_best: ConfusionMatrix | None
    kept: int
    missing: tuple[str, ...]

    def fact(self, *keys: str) -> Any:
        """A value inside run.json; None where there is none."""
        found: Any = self.facts
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        return found

    @property
    def starts(self) -> list[MetricsEvent]:
        """Oldest first; those whose step is known."""
        return [start for start in _all_starts(self.facts) if count_or_none(start.get("step")) is not None]

    @property
    def world_size(self) -> int | None:
        """Of the last start that has trained."""
        return count_or_none(self.fact("world", "world_size"))

    @property
    def classes(self) -> int | None:
        """How many there are; None where nothing says it."""
        return count_or_none(self.fact("training", "classes")) or (
            len(self.confusion.classes) if self.confusion else None
        )

    @property
    def steps_per_epoch(self) -> int | None:
        """None where the record of an older version does not say it."""
        return count_or_none(self.fact("training", "steps_per_epoch")) or None

    def column(self, kind: str, key: str) -> tuple[list[float], list[float]]:
        """(steps, values) of one curve, in the order of steps; NaN where a value is no number."""
        events = [event for event in self.events.get(kind, ()) if count_or_none(event.get("step")) is not None]
        points = sorted(
            ((float(event["step"]), finite_or_nan(event.get(key))) for event in events), key=lambda point: point[0]
        )
        return [step for step, _ in points], [value for _, value in points]


def load_run(folder: Path, name: str | None = None) -> RecordedRun:
    """What is there of the run in `folder`, called `name` in the report.

    Raises:
        Failure: NO_INPUT, where nothing there is a run's.
    """
    if not any(_is_file(folder / known) for known in (record.RUN_FILE, record.CONFIG_FILE, metrics.METRICS_FILE)):
        raise Failure(
            f"{folder} is not a run's folder",
            found=_describe_path(folder),
            expected=f"a folder with {record.RUN_FILE}, {record.CONFIG_FILE} or {metrics.METRICS_FILE}; "
            "or the JSON of `train bench`",
            fix="`train where --config FILE` prints the folder of a run",
            code=ExitCode.NO_INPUT,
        )
    config, facts, events = _read_config(folder), _read_run_json(folder), _read_events(folder)
    there = {record.CONFIG_FILE: config, record.RUN_FILE: facts, metrics.METRICS_FILE: events}
    return RecordedRun(
        folder=folder,
        name=name or _resolve_path(folder).name,
        config=config or {},
        idle=_idle_keys(folder) if config else frozenset(),
        facts=facts or {},
        events=events or {},
        ending=record.last_training_exit(_all_starts(facts), _read_ending(folder)),
        cut_off=exit_file.describe_unfinished_save(folder),
        confusion=_read_confusion(folder / CONFUSION_FILE),
        confusion_best=_read_confusion(folder / BEST_CONFUSION_FILE),
        kept=_count_checkpoints(folder / "checkpoints"),
        missing=tuple(f"{file} is not there or cannot be read" for file, found in there.items() if found is None),
    )


def load_runs(folders: Sequence[str]) -> tuple[list[RecordedRun], list[str]]:
    """Runs by the names of their folders; by what was typed, where two folders have the same name. Each once.

    Of several, what is none is left out; the second list says which, and why.

    Raises:
        Failure: as `load_run`, where none is left.
    """
    places: dict[Path, str] = {}
    for folder in folders:
        places.setdefault(_resolve_path(Path(folder)), folder)
    names, runs, failures = Counter(place.name for place in places), [], []
    for place, typed in places.items():
        try:
            runs.append(load_run(Path(typed), place.name if names[place.name] == 1 else typed))
        except Failure as failure:
            failures.append(failure)
    if failures and not runs:
        raise failures[0]
    return runs, [f"{failure.what}: {failure.found}" for failure in failures]


def finite_or_nan(value: Any) -> float:
    """A finite number, or NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return math.nan
    try:
        return float(value) if math.isfinite(value) else math.nan
    except OverflowError:
        return math.nan


def count_or_none(value: Any) -> int | None:
    """A whole number that can be counted to, or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15 else None


def _read_config(folder: Path) -> dict[str, Any] | None:
    """By `section.key`: not through the schema, since another version may have written it."""
    try:
        found = load.read_yaml_file(folder / record.CONFIG_FILE).value
    except Failure:
        return None
    sections = found.items() if isinstance(found, dict) else ()
    return {f"{name}.{key}": value for name, keys in sections if isinstance(keys, dict) for key, value in keys.items()}


def _idle_keys(folder: Path) -> frozenset[str]:
    """None that is known, of a configuration of another version."""
    try:
        config = load.build_config(load.read_yaml_file(folder / record.CONFIG_FILE), record.CONFIG_FILE)
        return checks.unused_keys(config) | registry.unused_keys(config.data)
    except Failure:
        return frozenset()


def _read_run_json(folder: Path) -> dict[str, Any] | None:
    try:
        return record.read_run(folder) if _is_file(folder / record.RUN_FILE) else None
    except RecursionError:
        return None


def _all_starts(facts: Mapping[str, Any] | None) -> list[MetricsEvent]:
    """All of them, also those that never knew their step."""
    found = (facts or {}).get("starts")
    return [start for start in found if isinstance(start, dict)] if isinstance(found, list) else []


def _read_ending(folder: Path) -> ExitRecord | None:
    return exit_file.read_exit(folder) if _is_file(folder / exit_file.ERRORS_FOLDER / exit_file.EXIT_FILE) else None


def _read_events(folder: Path) -> dict[str, list[MetricsEvent]] | None:
    path = folder / metrics.METRICS_FILE
    found: dict[str, list[MetricsEvent]] = {}
    if not _is_file(path):
        return None
    try:
        for event in metrics.read_events(path):
            found.setdefault(str(event.get("event")), []).append(event)
    except (OSError, RecursionError):
        return None
    return found


def _count_checkpoints(folder: Path) -> int:
    with suppress(Failure):
        return len(store.list_checkpoints(folder))
    return 0


def _read_confusion(path: Path) -> ConfusionMatrix | None:
    try:
        found = json.loads(path.read_bytes()) if _is_file(path) else {}
        names, rows = found["classes"], found["matrix"]
        matrix = tuple(tuple(count_or_none(cell) for cell in row) for row in rows)
        size = len(names)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    counts = tuple(tuple(cell for cell in row if cell is not None) for row in matrix)
    if not 0 < size <= MAX_CLASSES or [len(row) for row in counts] != [size] * size:
        return None
    return ConfusionMatrix(step=count_or_none(found.get("step")), classes=tuple(map(str, names)), matrix=counts)


def _is_file(path: Path) -> bool:
    """Not a pipe or a device, which would be read for ever."""
    try:
        return path.is_file()
    except (OSError, RuntimeError):
        return False


def _resolve_path(path: Path) -> Path:
    """As it was typed, where links lead nowhere."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        return path.absolute()


def _describe_path(folder: Path) -> str:
    try:
        kind = folder.stat().st_mode
        return "a folder without them, or one that cannot be read" if S_ISDIR(kind) else "a file"
    except FileNotFoundError:
        return "it does not exist"
    except OSError as error:
        return error.strerror or type(error).__name__


NOT_RECORDED: Final = "not recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Images per second between log points: the median, the quartiles, and of how many.

    ranks: of the start that it is of. warm_up: only its first log point is there, which holds its first steps.
    """

    images_per_s: float
    low: float
    high: float
    of: int
    ranks: int | None
    warm_up: bool = False


def measured_throughput(run: RecordedRun) -> Throughput | None:
    """Of the last start with a log point, all ranks together: without evaluations and saves and, of several lines,
    without the first.
    """
    for start in reversed(run.starts or [{"step": 0}]):
        if known := _logged_rates(run, after=start["step"]):
            used, ranks = known[1:] or known, count_or_none(start.get("world_size")) or run.world_size
            low, _, high = quantiles(used, n=4, method="inclusive") if len(used) > 1 else (used[0],) * 3
            middle, single = median(used), len(known) == 1
            return Throughput(images_per_s=middle, low=low, high=high, of=len(used), ranks=ranks, warm_up=single)
    return None


def num_ranks(run: RecordedRun) -> int | None:
    """Of the start whose speed counts."""
    found = measured_throughput(run)
    return found.ranks if found else run.world_size


def _logged_rates(run: RecordedRun, *, after: int) -> list[float]:
    """What the log points after a step say."""
    lines = [event for event in run.events.get("train", ()) if (count_or_none(event.get("step")) or 0) > after]
    return [value for event in lines if (value := finite_or_nan(event.get("images_per_s"))) > 0]


def training_seconds(run: RecordedRun) -> float | None:
    """Spent in training steps up to the last log point, in all starts."""
    batch, before, total = count_or_none(run.config.get("train.global_batch_size")), 0.0, 0.0
    steps, rates = run.column("train", "images_per_s")
    if not batch or not steps:
        return None
    for step, rate in zip(steps, rates, strict=True):
        total += (step - before) * batch / rate if rate > 0 else 0.0
        before = step
    return total


def validation_metrics(run: RecordedRun) -> list[Metric]:
    """The metrics that say something of so many classes."""
    return [metric for metric in METRICS.values() if run.classes is None or run.classes >= metric.min_classes]


def selection_metric(run: RecordedRun) -> Metric:
    """The one that decides which checkpoint is the best."""
    name = run.config.get("eval.metric")
    return find_metric(name) if isinstance(name, str) else DEFAULT_METRIC


def metric_label(metric: Metric) -> str:
    """As tables and plots name it, beside the metrics of training."""
    return f"val {metric.label}"


def best_evaluation(run: RecordedRun) -> tuple[float, float] | None:
    """(value, step) of the best evaluation by the run's own metric, the first of several."""
    metric = selection_metric(run)
    steps, values = run.column("eval", metric.name)
    evaluations = [(value, step) for value, step in zip(values, steps, strict=True) if math.isfinite(value)]
    return min(evaluations, key=lambda pair: (metric.rank_key(pair[0]), pair[1]), default=None)


def last_step(run: RecordedRun) -> int | None:
    """That stands in the record."""
    steps = [
        count_or_none(event.get("step"))
        for kind in ("train", "eval", "checkpoint")
        for event in run.events.get(kind, ())
    ]
    return max((step for step in steps if step is not None), default=None)


def describe_status(run: RecordedRun) -> str:
    """How it ended, or that nobody said so."""
    said = count_or_none(run.ending.step) if run.ending else None
    step, steps = last_step(run) if said is None else said, count_or_none(run.fact("training", "steps"))
    at = "before its first log point" if step is None else f"at step {step:,}" + (f" of {steps:,}" if steps else "")
    if run.ending is None:
        return f"unfinished, {at}: {run.cut_off or 'it is at work, or was killed'}"
    if run.ending.code == 0:
        return f"finished {at}"
    how = "stopped" if run.ending.code == ExitCode.STOPPED else "failed"
    return f"{how} {at} (exit code {run.ending.code}): {run.ending.cause}"


def describe_world(run: RecordedRun) -> str:
    """2 ranks on 1 node."""
    ranks, nodes = run.world_size, count_or_none(run.fact("world", "num_nodes"))
    if not ranks or not nodes:
        return "not recorded"
    return f"{ranks} rank{'s' * (ranks > 1)} on {nodes} node{'s' * (nodes > 1)}"


def format_metric(value: float | None, metric: Metric = DEFAULT_METRIC) -> str:
    """A value of the record, which may hold anything."""
    return metric.format(value if value is not None and math.isfinite(value) else None)


def format_throughput(found: Throughput | None) -> str:
    """Images per second."""
    if found is None:
        return NOT_MEASURED
    return f"{format_number(found.images_per_s)} images/s" + (" (first steps only)" if found.warm_up else "")


def format_number(value: float) -> str:
    """Three digits that count, thousands with a comma."""
    if not math.isfinite(value):
        return NOT_MEASURED
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"  # else: 1e+03


def format_duration(seconds: float | None) -> str:
    """12.3 s, 4 min 05 s, 3 h 07 min."""
    if seconds is None or not math.isfinite(seconds):
        return NOT_MEASURED
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def format_setting(value: Any) -> str:
    """Of a configuration, where null is a value."""
    return "null" if value is None else format_value(value)


def format_value(value: Any) -> str:
    """A value of a file for people: no quotes or brackets, and commas in large numbers."""
    if value is None:
        return NOT_RECORDED
    if isinstance(value, dict):
        return ", ".join(redact_words(f"{key}={format_value(one)}" for key, one in value.items())) or "none"
    if isinstance(value, list):
        return ", ".join(map(format_value, value)) or "none"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:,}" if abs(value) < 10**18 else f"{value:e}"
    if isinstance(value, str):
        return redact(value)
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def event_times(run: RecordedRun) -> list[float]:
    """Seconds since 1970 of all lines of the record, in order."""
    lines: list[MetricsEvent] = [event for events in run.events.values() for event in events]
    return sorted(at for event in lines if math.isfinite(at := finite_or_nan(event.get("time"))))
