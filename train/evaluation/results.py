"""This module holds an evaluation's result, compares results, and formats them for people and programs.

Each metric is defined in `train.metrics`. torch is not imported.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from entrypoint import dump_json, join_lines
from train import files
from train.files import one_line, shorten_name
from train.metrics import DEFAULT_METRIC, METRICS, Counts, ErrorSums, Metric, metrics_of
from train.tasks import CLASSIFICATION, TASKS, task_fact


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """The metrics of `samples` validation images.

    values: by the name of each metric of the task; None if it was not measured, as in a checkpoint
    of an older version. recall: by class; None for a class without images. average_precision,
    thresholds: by label, only of several labels per image; an image is given a label whose
    probability is at least the threshold.
    """

    samples: int
    values: Mapping[str, float | None]
    recall: tuple[float | None, ...] | None = None
    task: str = CLASSIFICATION
    average_precision: tuple[float | None, ...] | None = None
    thresholds: tuple[float, ...] | None = None

    @classmethod
    def of_counts(cls, task: str, counts: Counts | ErrorSums, **by_class: tuple[float | None, ...] | None) -> Self:
        """The metrics of the task, from what was counted. by_class: recall, average_precision, thresholds."""
        values = {name: metric.compute(counts) for name, metric in metrics_of(task).items()}
        return cls(samples=counts.samples, values=values, task=task, **by_class)  # type: ignore[arg-type]

    def to_json(self) -> dict[str, Any]:
        """One flat object, as in state.json, best.json and metrics.jsonl."""
        common = {**self.values, "samples": self.samples, **task_fact(self.task)}
        if not task_fact(self.task):
            return {**common, "recall": self.recall}  # null for very many classes
        by_label = {"average_precision": self.average_precision, "thresholds": self.thresholds}
        return {**common, **{name: value for name, value in by_label.items() if value is not None}}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> EvaluationResult:
        """Read the object of `to_json`. Metrics that this version does not know are left out.

        Raises:
            KeyError, TypeError: no evaluation wrote the object.
        """
        task = TASKS[saved.get("task", CLASSIFICATION)].name
        values = {
            name: saved[name] if metric.always_shown else saved.get(name) for name, metric in metrics_of(task).items()
        }
        by_class = {name: saved.get(name) for name in ("recall", "average_precision", "thresholds")}
        return cls(
            samples=saved["samples"],
            values=values,
            task=task,
            **{name: None if value is None else tuple(value) for name, value in by_class.items()},
        )

    def value(self, metric: str) -> float | None:
        """The metric's value; None where it was not measured or is NaN."""
        value = self.values.get(metric)
        return None if value is None or math.isnan(value) else value


def is_better(metric: str, new: EvaluationResult, old: EvaluationResult | None) -> bool:
    """Whether `new` is better than `old` by this metric. A number is better than None or NaN; NaN never is."""
    ours, theirs = new.value(metric), old.value(metric) if old else None
    if ours is None or theirs is None:
        return ours is not None
    return METRICS[metric].is_better(ours, theirs)


def reaches_target(metric: str, result: EvaluationResult, target: float) -> bool:
    """Whether `result` is as good as `target`, or better."""
    value = result.value(metric)
    return value is not None and not METRICS[metric].is_better(target, value)


MAX_HIDDEN_DIFFERENCE: Final = 0.02  # a mean over classes is shown if it differs by more from the accuracy
WEAK_CLASS_DIFFERENCE: Final = 0.1  # a class is weak if its recall is so far below the accuracy
MAX_RECORDED_CLASSES: Final = 100  # classes whose recall goes into metrics.jsonl
MAX_TABLE_CLASSES: Final = 20  # classes that fit a terminal as a table
NUM_WORST_CLASSES: Final = 3
MAX_NAME_WIDTH: Final = 16  # characters of a class's name in a table


def always_shown(task: str) -> list[Metric]:
    """The metrics in each epoch's line."""
    return [metric for metric in metrics_of(task).values() if metric.always_shown]


def format_epoch_line(result: EvaluationResult, chosen: str = DEFAULT_METRIC.name) -> str:
    """The metrics in an epoch's line: those always shown, the chosen one, and those that the accuracy hides."""
    parts = [
        f"val {metric.label} {metric.format(result.values[metric.name], 3)}" for metric in always_shown(result.task)
    ]
    accuracy = result.values.get("accuracy")
    for name, metric in METRICS.items():
        value = result.values.get(name)
        if value is None or metric.always_shown:
            continue
        differs = accuracy is not None and abs(value - accuracy) > MAX_HIDDEN_DIFFERENCE
        if (differs and metric.shown_beside_accuracy) or name == chosen:
            parts.append(f"{metric.label} {metric.format(value, 3)}")
    return ", ".join(parts)


def metric_rows(
    result: EvaluationResult, classes: Sequence[str] = (), noun: str = "validation image"
) -> dict[str, str]:
    """The metrics at the end of a run, by label. noun: what the samples are."""
    first, *others = always_shown(result.task)
    parts = [f"{first.format(result.values[first.name])} of {result.samples:,} {noun}s"]
    parts += [f"{metric.label} {metric.format(result.values[metric.name])}" for metric in others]
    rows = {first.label: ", ".join(parts)}
    for name, metric in METRICS.items():
        if metric.always_shown or result.values.get(name) is None:
            continue
        if metric.min_classes <= max(len(classes), 2):
            rows[metric.label] = metric.format(result.values[name])
    if weak := _weak_classes(result, classes):
        word = "average precision" if result.recall is None else "recall"
        rows["weak classes"] = f"{', '.join(f'{one_line(name)} {share:.1%}' for name, share in weak)} ({word})"
    return rows


def describe_best(result: EvaluationResult, name: str, *, step: int, epoch: int) -> str:
    """The best evaluation, if it was not the last: 75.00% at step 72 (epoch 12)."""
    metric, value = METRICS[name], result.values.get(name)
    label = "" if value is None or metric is always_shown(result.task)[0] else f"{metric.label} "
    return f"{label}{metric.format(value)} at step {step:,} (epoch {epoch})"


def metrics_to_log(result: EvaluationResult) -> dict[str, Any]:
    """The values for metrics.jsonl: all that were measured; recall of each class only for few, to keep lines short."""
    event = {name: value for name, value in result.to_json().items() if value is not None}
    for name in ("recall", "average_precision", "thresholds"):
        if len(event.get(name, ())) > MAX_RECORDED_CLASSES:
            del event[name]
    return event


def confusion_json(step: int, classes: Sequence[str], matrix: Sequence[Sequence[int]]) -> str:
    """A JSON object with one line for each class: row by label, column by prediction."""
    rows = ",\n".join(json.dumps([*row]) for row in matrix)
    names = dump_json([*classes], allow_nan=False)
    return f'{{\n"step": {step},\n"classes": {names},\n"matrix": [\n{rows}\n]\n}}\n'


def format_confusion_table(result: EvaluationResult, classes: Sequence[str], matrix: Sequence[Sequence[int]]) -> str:
    """Recall by class, and the confusion matrix: how often each class (line) was predicted as each other (column)."""
    recall = result.recall or [None] * len(classes)
    numbers = [str(number) for number in range(len(classes))]
    lines = [("", "class", "recall", *numbers)]
    for number, name, share, row in zip(numbers, classes, recall, matrix, strict=True):
        percent = "-" if share is None else f"{share:.1%}"
        lines.append((number, shorten_name(name, MAX_NAME_WIDTH), percent, *(str(n) for n in row)))
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return join_lines(_align_cells(cells, widths) for cells in lines)


def result_to_json(result: EvaluationResult, matrix: Sequence[Sequence[int]] | None, about: Mapping[str, Any]) -> str:
    """One JSON object on one line; NaN and infinities, which JSON does not have, become null."""
    scalars = {
        name: None if value != value or value in _INFINITIES else value for name, value in result.to_json().items()
    }
    confusion = None if matrix is None else [[*row] for row in matrix]
    return dump_json({**about, **scalars, "confusion": confusion}, allow_nan=False)


_INFINITIES: Final = (float("inf"), float("-inf"))


def _weak_classes(result: EvaluationResult, classes: Sequence[str]) -> list[tuple[str, float]]:
    """The worst classes, where there are more than two and one is far below the rest."""
    by_class = result.recall or result.average_precision
    if by_class is None or len(classes) <= 2:
        return []
    accuracy = result.values[TASKS[result.task].default_metric] or 0.0
    shares = [(name, share) for name, share in zip(classes, by_class, strict=True) if share is not None]
    worst = sorted(shares, key=lambda pair: pair[1])[:NUM_WORST_CLASSES]
    if not worst or worst[0][1] >= accuracy - WEAK_CLASS_DIFFERENCE:
        return []
    return [(name, share) for name, share in worst if share < accuracy]


def _align_cells(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Align the name to the left and numbers to the right."""
    number, name, *rest = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join([number, name.strip().ljust(widths[1]), *rest]).rstrip()


TEST_FILE: Final = "test.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalScore:
    """What was measured. step: of the weights. trained_steps: of the run, when it was measured."""

    step: int
    trained_steps: int
    checkpoint: str
    result: EvaluationResult

    def to_json(self) -> dict[str, Any]:
        """One flat object, as `best.json`."""
        facts = {"step": self.step, "trained_steps": self.trained_steps, "checkpoint": self.checkpoint}
        return facts | self.result.to_json()

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> FinalScore:
        """Read the object of `to_json`.

        Raises:
            KeyError, TypeError: no run wrote the object.
        """
        return cls(
            step=int(saved["step"]),
            trained_steps=int(saved["trained_steps"]),
            checkpoint=str(saved["checkpoint"]),
            result=EvaluationResult.from_json(saved),
        )

    def describe(self, chosen: str) -> str:
        """The metrics always shown and the chosen one, for the last lines of a run."""
        metrics = metrics_of(self.result.task)
        shown = [metric for name, metric in metrics.items() if metric.always_shown or name == chosen]
        values = [f"{metric.label} {metric.format(self.result.values.get(metric.name))}" for metric in shown]
        return (
            f"{', '.join(values)} on {self.result.samples:,} images that chose nothing (weights of step {self.step:,})"
        )


def read_final_score(run_folder: Path) -> FinalScore | None:
    """The score in `test.json`; None if it is missing or unreadable."""
    try:
        return FinalScore.from_json(files.read_json(run_folder / TEST_FILE))
    except (OSError, *files.MALFORMED_ERRORS):
        return None
