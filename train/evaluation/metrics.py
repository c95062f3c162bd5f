"""This module computes metrics from counts, compares and formats them.

It does not import torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from train.files import one_line, shorten_name

LOWER_IS_BETTER: Final = ("loss",)  # of names.METRICS: better when lower


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """Measured on `samples` held-out images.

    accuracy: the share whose class has the largest logit; top5_accuracy: whose class is among the five largest.
    loss: mean cross-entropy in nats, without label smoothing or class weights.
    macro_f1: mean F1 over the classes that were held out or answered. recall: by class; None without an image of it.
    What is None was not measured: the result comes from a checkpoint of an older version.
    """

    accuracy: float
    loss: float
    samples: int
    top5_accuracy: float | None = None
    macro_f1: float | None = None
    recall: tuple[float | None, ...] | None = None

    def __post_init__(self) -> None:
        """JSON has no tuples: what comes back from a checkpoint is a list."""
        if self.recall is not None:
            object.__setattr__(self, "recall", tuple(self.recall))


def is_better(metric: str, new: EvaluationResult, old: EvaluationResult | None) -> bool:
    """Whether `new` beats `old` by one of names.METRICS. A number beats nothing and NaN; NaN beats nothing at all."""
    ours, theirs = _metric_value(metric, new), _metric_value(metric, old)
    if ours is None or theirs is None:
        return ours is not None
    return ours < theirs if metric in LOWER_IS_BETTER else ours > theirs


def reaches_target(metric: str, result: EvaluationResult, target: float) -> bool:
    """Whether `result` is as good as `target`, or better."""
    value = _metric_value(metric, result)
    if value is None:
        return False
    return value <= target if metric in LOWER_IS_BETTER else value >= target


def macro_f1(right: Sequence[float], given: Sequence[float], due: Sequence[float]) -> float:
    """The mean F1 over the classes that occur, each counting the same: scikit-learn's average="macro".

    By class: right answers, answers given, samples. A class that was neither answered nor there is left out; one that
    was there and never answered counts as 0.
    """
    both = [(hits, answers + samples) for hits, answers, samples in zip(right, given, due, strict=True)]
    f1 = [2 * hits / seen for hits, seen in both if seen]
    return math.fsum(f1) / len(f1)


def recall(right: Sequence[float], due: Sequence[float]) -> tuple[float | None, ...]:
    """By class the share of its samples that was answered right; None for a class without samples."""
    return tuple(hits / samples if samples else None for hits, samples in zip(right, due, strict=True))


def _metric_value(metric: str, result: EvaluationResult | None) -> float | None:
    """The number, where there is one."""
    value: float | None = getattr(result, metric) if result else None
    return None if value is None or math.isnan(value) else value


MAX_HIDDEN_F1_DIFFERENCE: Final = 0.02  # macro F1 is worth a look where it is this far from the accuracy
WEAK_CLASS_DIFFERENCE: Final = 0.1  # and a class, where its recall is this far below the accuracy
MAX_RECORDED_CLASSES: Final = 100  # classes whose recall goes into metrics.jsonl
MAX_TABLE_CLASSES: Final = 20  # classes that fit a terminal as a table
NUM_WORST_CLASSES: Final = 3
MAX_NAME_WIDTH: Final = 16  # letters of a class's name in a table
METRIC_FORMATS: Final[Mapping[str, str]] = {  # of names.METRICS
    "accuracy": "{:.2%}",
    "top5_accuracy": "top-5 {:.2%}",
    "macro_f1": "macro F1 {:.4f}",
    "loss": "loss {:.4f}",
}


def format_epoch_line(result: EvaluationResult, metric: str = "accuracy") -> str:
    """Of an epoch: accuracy and loss of the held-out images, and what else the metric asks for or accuracy hides."""
    text = f"val accuracy {result.accuracy:.2%}, val loss {result.loss:.3f}"
    if metric == "top5_accuracy" and result.top5_accuracy is not None:
        text += f", top-5 {result.top5_accuracy:.2%}"
    if result.macro_f1 is not None and (
        metric == "macro_f1" or abs(result.macro_f1 - result.accuracy) > MAX_HIDDEN_F1_DIFFERENCE
    ):
        text += f", macro F1 {result.macro_f1:.3f}"
    return text


def metric_rows(result: EvaluationResult, classes: Sequence[str] = (), one: str = "held-out image") -> dict[str, str]:
    """What the end of a run says, by name. one: of what was measured."""
    told = {"accuracy": f"{result.accuracy:.2%} of {result.samples:,} {one}s, loss {result.loss:.4f}"}
    if result.top5_accuracy is not None and len(classes) > 5:
        told["top-5"] = f"{result.top5_accuracy:.2%}"
    if result.macro_f1 is not None:
        told["macro F1"] = f"{result.macro_f1:.4f}"
    if weak := _weak_classes(result, classes):
        told["weak classes"] = f"{', '.join(f'{one_line(name)} {share:.1%}' for name, share in weak)} (recall)"
    return told


def describe_best(result: EvaluationResult, metric: str, *, step: int, epoch: int) -> str:
    """Which evaluation was the best, for the end of a run whose last one was not: 75.00% at step 72 (epoch 12)."""
    value = getattr(result, metric)
    told = "not measured" if value is None else METRIC_FORMATS[metric].format(value)
    return f"{told} at step {step:,} (epoch {epoch})"


def metrics_to_log(result: EvaluationResult) -> dict[str, Any]:
    """For metrics.jsonl: every number that was measured; recall by class only where it does not flood the file."""
    told = {name: value for name, value in asdict(result).items() if value is not None}
    if len(told.get("recall", ())) > MAX_RECORDED_CLASSES:
        del told["recall"]
    return told


def confusion_json(step: int, classes: Sequence[str], matrix: Sequence[Sequence[int]]) -> str:
    """A JSON object with one line for each class: row by label, column by answer."""
    rows = ",\n".join(json.dumps([*row]) for row in matrix)
    names = _dump_json([*classes])
    return f'{{\n"step": {step},\n"classes": {names},\n"matrix": [\n{rows}\n]\n}}\n'


def format_confusion_table(result: EvaluationResult, classes: Sequence[str], matrix: Sequence[Sequence[int]]) -> str:
    """Recall by class, and the confusion matrix: how often each class (line) was answered as each other (column)."""
    recall = result.recall or [None] * len(classes)
    numbers = [str(number) for number in range(len(classes))]
    lines = [("", "class", "recall", *numbers)]
    for number, name, share, row in zip(numbers, classes, recall, matrix, strict=True):
        shown = "-" if share is None else f"{share:.1%}"
        lines.append((number, shorten_name(name, MAX_NAME_WIDTH), shown, *(str(n) for n in row)))
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(_align_cells(cells, widths) for cells in lines)


def result_to_json(result: EvaluationResult, matrix: Sequence[Sequence[int]] | None, about: Mapping[str, Any]) -> str:
    """One JSON object on one line; NaN and infinities, which JSON does not have, become null."""
    scalars = {
        name: None if value != value or value in _INFINITIES else value for name, value in asdict(result).items()
    }
    confusion = None if matrix is None else [[*row] for row in matrix]
    return _dump_json({**about, **scalars, "confusion": confusion})


def _dump_json(value: Any) -> str:
    """Bytes of a folder's name that are no text are as in Python: os.fsencode gives them back."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False).encode(errors="backslashreplace").decode()


_INFINITIES: Final = (float("inf"), float("-inf"))


def _weak_classes(result: EvaluationResult, classes: Sequence[str]) -> list[tuple[str, float]]:
    """The worst classes, where there are more than two and one is far below the rest."""
    if result.recall is None or len(classes) <= 2:
        return []
    known = [(name, share) for name, share in zip(classes, result.recall, strict=True) if share is not None]
    worst = sorted(known, key=lambda pair: pair[1])[:NUM_WORST_CLASSES]
    if not worst or worst[0][1] >= result.accuracy - WEAK_CLASS_DIFFERENCE:
        return []
    return [(name, share) for name, share in worst if share < result.accuracy]


def _align_cells(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Names to the left, numbers to the right."""
    number, name, *rest = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join([number, name.strip().ljust(widths[1]), *rest]).rstrip()
