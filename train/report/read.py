"""This module reads a run's folder, finished or not, and computes the values for a report.

A report never fails because of a bad line: every value is checked, and what cannot be read is
named in `RecordedRun.missing`.
"""

from __future__ import annotations

import json
import math
import os
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from pathlib import Path
from stat import S_ISDIR
from statistics import median, quantiles
from typing import Any, Final

import numpy as np

from entrypoint import ExitCode, ExitRecord, Failure, RunErrors, redact, redact_words, shell_command
from train import files
from train.checkpoint import store
from train.config import load
from train.data import registry
from train.logging import metrics_logger, progress
from train.metrics import DEFAULT_METRIC, NOT_MEASURED, Metric, find_metric, metrics_of
from train.report.curves import GPU_KEYS, Curve, GpuUse
from train.run import record
from train.tasks import CLASSIFICATION, TASKS

MAX_CLASSES: Final = 1000
MetricsEvent = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfusionMatrix:
    """matrix [classes, classes]: row by label, column by prediction. step: of the evaluation."""

    step: int | None
    classes: tuple[str, ...]
    matrix: tuple[tuple[int, ...], ...]


@dataclass(slots=True, kw_only=True)
class RecordedMetrics:
    """What a report needs of metrics.jsonl, in a memory that does not grow with the lines of log points and GPUs.

    events: the other lines by name, without `rank` and without lists. curves: of each value of the log points, over
    steps. speeds: (step, images per second) of each log point, whose median is shown. gpus: by name. recorded: when the
    first and the last line were written, in seconds since 1970.
    """

    events: dict[str, list[MetricsEvent]] = field(default_factory=dict)
    curves: defaultdict[str, Curve] = field(default_factory=lambda: defaultdict(Curve))
    speeds: tuple[array[float], array[float]] = field(default_factory=lambda: (array("d"), array("d")))
    gpus: defaultdict[str, GpuUse] = field(default_factory=lambda: defaultdict(GpuUse))
    recorded: tuple[float, float] | None = None

    def add(self, event: MetricsEvent, time: float) -> None:
        """Add a line. time: NaN if it has none."""
        name, step = str(event.get("event")), count_or_none(event.get("step"))
        if name == "gpu" and not math.isnan(time):
            values = {key: finite_or_nan(event.get(key)) for key in GPU_KEYS}
            self.gpus[str(event.get("gpu"))].add(time, values)
        elif name == "train" and step is not None:
            for key, value in event.items():
                self.curves[key].add(step, finite_or_nan(value))
            for column, number in zip(self.speeds, (step, finite_or_nan(event.get("images_per_s"))), strict=True):
                column.append(number)
        elif name not in ("gpu", "train", "rank"):  # no section shows those of ranks
            scalars = {sys.intern(key): value for key, value in event.items() if not isinstance(value, list | dict)}
            self.events.setdefault(name, []).append(scalars)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRun:
    """The contents of a run's folder."""

    folder: Path
    name: str
    config: Mapping[str, Any]  # by `section.key`
    unused_keys: frozenset[str]  # of the config: they had no effect
    facts: Mapping[str, Any]  # run.json
    metrics: RecordedMetrics
    # The exit record of the last start that trained: a later start that was refused did not end the run.
    ending: ExitRecord | None
    cut_off: str | None  # how a run without an exit record was killed, if that is known
    confusion: ConfusionMatrix | None  # of the last evaluation
    confusion_best: ConfusionMatrix | None  # of the best one; an older version did not write it
    num_checkpoints: int  # in the folder
    missing: tuple[str, ...]  # what could not be read, in words

    def fact(self, *keys: str) -> Any:
        """A value inside run.json, or None."""
        value: Any = self.facts
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    def facts_of(self, group: str, prefix: str) -> dict[str, str]:
        """The values of one group of run.json in words, by their key after `prefix`."""
        values = self.fact(group)
        items = values.items() if isinstance(values, dict) else ()
        return {f"{prefix}{key}": format_value(value) for key, value in items}

    @property
    def starts(self) -> list[MetricsEvent]:
        """The starts whose step is known, oldest first."""
        return [start for start in self.facts.get("starts", ()) if count_or_none(start.get("step")) is not None]

    @property
    def world_size(self) -> int | None:
        """The number of ranks of the last start that trained."""
        return count_or_none(self.fact("world", "world_size"))

    @property
    def classes(self) -> int | None:
        """The number of classes, or None if it is unknown."""
        return count_or_none(self.fact("training", "classes")) or (
            len(self.confusion.classes) if self.confusion else None
        )

    @property
    def task(self) -> str:
        """What the labels are. Older versions knew only classes."""
        task = self.fact("training", "task")
        return task if isinstance(task, str) and task in TASKS else CLASSIFICATION

    @property
    def steps_per_epoch(self) -> int | None:
        """Optimizer steps per epoch; None if an older version did not record it."""
        return count_or_none(self.fact("training", "steps_per_epoch")) or None

    def column(self, name: str, key: str) -> tuple[list[float], list[float]]:
        """(steps, values) of one curve, ordered by step; NaN for a value that is no number. Of many log points
        (`train`), those that `Curve` keeps."""
        if name == "train":
            drawn = self.metrics.curves[key].points() if key in self.metrics.curves else np.empty((0, 2))
            return drawn[:, 0].tolist(), drawn[:, 1].tolist()
        events = [event for event in self.metrics.events.get(name, ()) if count_or_none(event.get("step")) is not None]
        points = sorted(
            ((float(event["step"]), finite_or_nan(event.get(key))) for event in events), key=lambda point: point[0]
        )
        return [step for step, _ in points], [value for _, value in points]


def is_run(folder: Path) -> bool:
    """Whether the folder has a file of a run."""
    names = (record.RUN_FILE, record.CONFIG_FILE, metrics_logger.METRICS_FILE)
    return any(os.path.isfile(folder / file) for file in names)


def runs_inside(folder: str) -> list[str]:
    """The folder itself if it is a run or holds none; otherwise the runs directly in it, ordered by name."""
    if is_run(Path(folder)):
        return [folder]
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if is_run(Path(entry.path)))
    except OSError:
        return [folder]
    return [os.path.join(folder, name) for name in names] or [folder]


def load_run(folder: Path, name: str | None = None) -> RecordedRun:
    """Read the run in `folder`; `name` is its name in the report.

    Raises:
        Failure: NO_INPUT if the folder has no file of a run.
    """
    if not is_run(folder):
        raise Failure(
            f"{folder} is not a run's folder",
            found=_describe_path(folder),
            expected=f"a folder with {record.RUN_FILE}, {record.CONFIG_FILE} or {metrics_logger.METRICS_FILE}; "
            "or the JSON of `train bench`",
            fix=files.did_you_mean(folder)
            + f"`{shell_command('train where --config FILE')}` prints the folder of a run",
            code=ExitCode.NO_INPUT,
        )
    (config, unused_keys), facts, metrics = _read_config(folder), record.read_run(folder), _read_metrics(folder)
    contents = {record.CONFIG_FILE: config, record.RUN_FILE: facts, metrics_logger.METRICS_FILE: metrics}
    return RecordedRun(
        folder=folder,
        name=name or Path(os.path.realpath(folder)).name,
        config=config or {},
        unused_keys=unused_keys,
        facts=facts or {},
        metrics=metrics or RecordedMetrics(),
        ending=record.last_training_exit((facts or {}).get("starts", ()), RunErrors.in_run(folder).read_exit()),
        cut_off=RunErrors.in_run(folder).describe_unfinished_save(),
        confusion=_read_confusion(folder / record.CONFUSION_FILE),
        confusion_best=_read_confusion(folder / record.BEST_CONFUSION_FILE),
        num_checkpoints=_count_checkpoints(folder / "checkpoints"),
        missing=tuple(f"{file} is not there or cannot be read" for file, text in contents.items() if text is None),
    )


def load_runs(folders: Sequence[str]) -> tuple[list[RecordedRun], list[str]]:
    """Read each folder once. A folder of runs stands for all of them.

    Return the runs, and what was left out because it is no run, with the reason.

    A run is called as its folder, or as the argument if two folders have the same name.

    Raises:
        Failure: as `load_run`, if no folder is a run.
    """
    arguments: dict[Path, str] = {}
    for folder in chain.from_iterable(map(runs_inside, folders)):
        arguments.setdefault(Path(os.path.realpath(folder)), folder)
    names, runs, failures = Counter(path.name for path in arguments), [], []
    for path, argument in arguments.items():
        try:
            runs.append(load_run(Path(argument), path.name if names[path.name] == 1 else argument))
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
    """A plausible count (an integer of 0 or more), or None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**15 else None


def _read_config(folder: Path) -> tuple[dict[str, Any] | None, frozenset[str]]:
    """The config by `section.key`, without the schema: another version may have written it.

    Also its keys without effect; none if the config is of another version.
    """
    config, unused_keys = None, frozenset[str]()
    with suppress(Failure):
        document = load.read_yaml_file(folder / record.CONFIG_FILE)
        sections = document.value.items() if isinstance(document.value, dict) else ()
        tables = [(name, keys) for name, keys in sections if isinstance(keys, dict)]
        config = {f"{name}.{key}": value for name, keys in tables for key, value in keys.items()}
        parsed = load.build_config(document, record.CONFIG_FILE)
        unused_keys = frozenset(registry.unused_keys(parsed))
    return config, unused_keys if config else frozenset()


def _read_metrics(folder: Path) -> RecordedMetrics | None:
    """The metrics; None without the file, which is read once, line by line."""
    path = folder / metrics_logger.METRICS_FILE
    if not os.path.isfile(path):
        return None
    metrics, first, last = RecordedMetrics(), math.inf, -math.inf
    with suppress(OSError):
        for event in metrics_logger.read_events(path):
            time = finite_or_nan(event.get("time"))
            first, last = min(first, time), max(last, time)  # NaN changes neither
            metrics.add(event, time)
        for gpu in metrics.gpus.values():
            gpu.finish()
        metrics.recorded = (first, last) if first <= last else None
        return metrics
    return None


def _count_checkpoints(folder: Path) -> int:
    with suppress(Failure):
        return len(store.list_checkpoints(folder))
    return 0


def _read_confusion(path: Path) -> ConfusionMatrix | None:
    try:
        content = files.read_json(path)
        names, rows = content["classes"], content["matrix"]
        matrix = tuple(tuple(count_or_none(cell) for cell in row) for row in rows)
        size = len(names)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    counts = tuple(tuple(cell for cell in row if cell is not None) for row in matrix)
    if not 0 < size <= MAX_CLASSES or [len(row) for row in counts] != [size] * size:
        return None
    return ConfusionMatrix(step=count_or_none(content.get("step")), classes=tuple(map(str, names)), matrix=counts)


def _describe_path(folder: Path) -> str:
    try:
        mode = folder.stat().st_mode
        return "a folder without them, or one that cannot be read" if S_ISDIR(mode) else "a file"
    except FileNotFoundError:
        return "it does not exist"
    except OSError as error:
        return error.strerror or type(error).__name__


NOT_RECORDED: Final = "not recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Images per second between log points.

    images_per_s: the median. low, high: the quartiles. ranks: of the measured start. warm_up: only
    its first log point exists, which includes the first steps.
    """

    images_per_s: float
    low: float
    high: float
    ranks: int | None
    warm_up: bool = False


def measured_throughput(run: RecordedRun) -> Throughput | None:
    """The throughput of all ranks in the last start, without evaluations and saves.

    The first log point is left out if there are several.
    """
    rates = [(step, rate) for step, rate in zip(*run.metrics.speeds, strict=True) if rate > 0]
    for start in reversed(run.starts or [{"step": 0}]):
        if of_start := [rate for step, rate in rates if step > start["step"]]:
            steady, ranks = of_start[1:] or of_start, count_or_none(start.get("world_size")) or run.world_size
            low, _, high = quantiles(steady, n=4, method="inclusive") if len(steady) > 1 else (steady[0],) * 3
            return Throughput(images_per_s=median(steady), low=low, high=high, ranks=ranks, warm_up=len(of_start) == 1)
    return None


def num_ranks(run: RecordedRun) -> int | None:
    """The number of ranks of the start whose throughput is reported."""
    throughput = measured_throughput(run)
    return throughput.ranks if throughput else run.world_size


def training_seconds(run: RecordedRun) -> float | None:
    """Seconds in training steps, in all starts; those after the last log point are taken to be as fast as before it."""
    batch, before, total = count_or_none(run.config.get("train.global_batch_size")), 0.0, 0.0
    log_points = sorted(zip(*run.metrics.speeds, strict=True), key=itemgetter(0))
    if not batch or not log_points:
        return None
    for step, rate in log_points:
        total += (step - before) * batch / rate if rate > 0 else 0.0
        before = step
    rest = max(0.0, (last_step(run) or 0) - before)
    return total + (rest * batch / rate if rate > 0 else 0.0)


def meaningful_metrics(task: str, classes: int | None) -> list[Metric]:
    """The metrics of a task that are meaningful for its number of classes; all of them if it is unknown."""
    classes = None if classes is None else max(classes, 2)  # numbers have one output
    return [metric for metric in metrics_of(task).values() if classes is None or classes >= metric.min_classes]


def selection_metric(run: RecordedRun) -> Metric:
    """The metric that decides which checkpoint is the best."""
    name = run.config.get("eval.metric")
    return find_metric(name) if isinstance(name, str) else DEFAULT_METRIC


def metric_label(metric: Metric) -> str:
    """The metric's name in tables and plots that also show metrics of training."""
    return f"val {metric.label}"


def best_evaluation(run: RecordedRun) -> tuple[float, float] | None:
    """(value, step) of the best evaluation by the run's own metric, the first of several."""
    metric = selection_metric(run)
    steps, values = run.column("eval", metric.name)
    evaluations = [(value, step) for value, step in zip(values, steps, strict=True) if math.isfinite(value)]
    return min(evaluations, key=lambda pair: (metric.rank_key(pair[0]), pair[1]), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTest:
    """The scores on the test split. values: by metric. weights_step: of the checkpoint that was measured."""

    values: Mapping[str, float]
    samples: int | None
    weights_step: int | None


def final_score(run: RecordedRun) -> MeasuredTest | None:
    """The last measurement of the test split; None without one."""
    events = [event for event in run.metrics.events.get("test", ()) if count_or_none(event.get("step")) is not None]
    if not events:
        return None
    last = max(events, key=lambda event: event["step"])
    return MeasuredTest(
        values={name: finite_or_nan(last.get(name)) for name in metrics_of(run.task)},
        samples=count_or_none(last.get("samples")),
        weights_step=count_or_none(last.get("weights_step")),
    )


def evaluated_images(run: RecordedRun) -> dict[float, int]:
    """Step -> the number of images in its evaluation; without those that an older version did not record."""
    steps, counts = run.column("eval", "samples")
    return {step: round(count) for step, count in zip(steps, counts, strict=True) if count > 0}


def last_step(run: RecordedRun) -> int | None:
    """The last step in metrics.jsonl."""
    events = chain.from_iterable(run.metrics.events.get(name, ()) for name in ("eval", "checkpoint"))
    logged = [*(count_or_none(event.get("step")) for event in events), *map(int, run.metrics.speeds[0])]
    return max((step for step in logged if step is not None), default=None)


def describe_status(run: RecordedRun) -> str:
    """How the run ended, or that it is unfinished."""
    recorded_step = count_or_none(run.ending.step) if run.ending else None
    step = last_step(run) if recorded_step is None else recorded_step
    steps = count_or_none(run.fact("training", "steps"))
    position = (
        "before its first log point" if step is None else f"at step {step:,}" + (f" of {steps:,}" if steps else "")
    )
    if run.ending is None:
        return f"unfinished, {position}: {run.cut_off or 'it is running, or was killed'}"
    if run.ending.code == 0:
        return f"finished {position}"
    verb = "stopped" if run.ending.code == ExitCode.STOPPED else "failed"
    return f"{verb} {position} (exit code {run.ending.code}): {run.ending.cause}"


def describe_world(run: RecordedRun) -> str:
    """Ranks and nodes: 2 ranks on 1 node."""
    ranks, nodes = run.world_size, count_or_none(run.fact("world", "num_nodes"))
    if not ranks or not nodes:
        return "not recorded"
    return f"{ranks} rank{'s' * (ranks > 1)} on {nodes} node{'s' * (nodes > 1)}"


def format_throughput(throughput: Throughput | None) -> str:
    """Images per second, with their unit."""
    if throughput is None:
        return NOT_MEASURED
    return f"{format_number(throughput.images_per_s)} images/s" + (" (first steps only)" if throughput.warm_up else "")


def format_number(value: float) -> str:
    """Three significant digits, thousands with a comma."""
    if not math.isfinite(value):
        return NOT_MEASURED
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"  # .3g would give 1e+03


def format_duration(seconds: float | None) -> str:
    """A duration: 12.3 s, 4 min 05 s, 3 h 07 min."""
    return NOT_MEASURED if seconds is None or not math.isfinite(seconds) else progress.format_duration(seconds)


def format_setting(value: Any) -> str:
    """A config value; None is null."""
    return "null" if value is None else format_value(value)


def format_value(value: Any) -> str:
    """A JSON value for people: without quotes and brackets, with commas in large numbers."""
    if value is None:
        return NOT_RECORDED
    if isinstance(value, dict):
        return ", ".join(redact_words(f"{key}={format_value(item)}" for key, item in value.items())) or "none"
    if isinstance(value, list):
        return ", ".join(map(format_value, value)) or "none"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10_000:
        return f"{value:,}" if abs(value) < 10**18 else f"{value:e}"
    if isinstance(value, str):
        return redact(value)
    return json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
