"""Scores become the words, tables and JSON that people and programs read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from train.evaluation.scores import Result
from train.oneline import one_line, shortened

APART: Final = 0.02  # macro F1 is worth a look where it is this far from the accuracy
WEAK: Final = 0.1  # and a class, where its recall is this far below the accuracy
RECORDED: Final = 100  # classes whose recall goes into metrics.jsonl
SHOWN: Final = 20  # classes that fit a terminal as a table
WORST: Final = 3
WIDEST: Final = 16  # letters of a class's name in a table
SCORE: Final[Mapping[str, str]] = {  # of names.METRICS
    "accuracy": "{:.2%}",
    "top5_accuracy": "top-5 {:.2%}",
    "macro_f1": "macro F1 {:.4f}",
    "loss": "loss {:.4f}",
}


def line(result: Result, metric: str = "accuracy") -> str:
    """Of an epoch: accuracy and loss of the held-out images, and what else the metric asks for or accuracy hides."""
    text = f"val accuracy {result.accuracy:.2%}, val loss {result.loss:.3f}"
    if metric == "top5_accuracy" and result.top5_accuracy is not None:
        text += f", top-5 {result.top5_accuracy:.2%}"
    if result.macro_f1 is not None and (metric == "macro_f1" or abs(result.macro_f1 - result.accuracy) > APART):
        text += f", macro F1 {result.macro_f1:.3f}"
    return text


def facts(result: Result, classes: Sequence[str] = (), one: str = "held-out image") -> dict[str, str]:
    """What the end of a run says, by name. one: of what was measured."""
    told = {"accuracy": f"{result.accuracy:.2%} of {result.samples:,} {one}s, loss {result.loss:.4f}"}
    if result.top5_accuracy is not None and len(classes) > 5:
        told["top-5"] = f"{result.top5_accuracy:.2%}"
    if result.macro_f1 is not None:
        told["macro F1"] = f"{result.macro_f1:.4f}"
    if weak := _weak(result, classes):
        told["weak classes"] = f"{', '.join(f'{one_line(name)} {share:.1%}' for name, share in weak)} (recall)"
    return told


def best(result: Result, metric: str, *, step: int, epoch: int) -> str:
    """Which evaluation was the best, for the end of a run whose last one was not: 75.00% at step 72 (epoch 12)."""
    value = getattr(result, metric)
    told = "not measured" if value is None else SCORE[metric].format(value)
    return f"{told} at step {step:,} (epoch {epoch})"


def record(result: Result) -> dict[str, Any]:
    """For metrics.jsonl: every number that was measured; recall by class only where it does not flood the file."""
    told = {name: value for name, value in asdict(result).items() if value is not None}
    if len(told.get("recall", ())) > RECORDED:
        del told["recall"]
    return told


def confusion_json(step: int, classes: Sequence[str], matrix: Sequence[Sequence[int]]) -> str:
    """A JSON object with one line for each class: row by label, column by answer."""
    rows = ",\n".join(json.dumps([*row]) for row in matrix)
    names = _written([*classes])
    return f'{{\n"step": {step},\n"classes": {names},\n"matrix": [\n{rows}\n]\n}}\n'


def table(result: Result, classes: Sequence[str], matrix: Sequence[Sequence[int]]) -> str:
    """Recall by class, and the confusion matrix: how often each class (line) was answered as each other (column)."""
    recall = result.recall or [None] * len(classes)
    numbers = [str(number) for number in range(len(classes))]
    lines = [("", "class", "recall", *numbers)]
    for number, name, share, row in zip(numbers, classes, recall, matrix, strict=True):
        shown = "-" if share is None else f"{share:.1%}"
        lines.append((number, shortened(name, WIDEST), shown, *(str(n) for n in row)))
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(_aligned(cells, widths) for cells in lines)


def as_json(result: Result, matrix: Sequence[Sequence[int]] | None, about: Mapping[str, Any]) -> str:
    """One JSON object on one line; NaN and infinities, which JSON does not have, become null."""
    scalars = {name: None if value != value or value in _INFINITE else value for name, value in asdict(result).items()}
    confusion = None if matrix is None else [[*row] for row in matrix]
    return _written({**about, **scalars, "confusion": confusion})


def _written(value: Any) -> str:
    """Bytes of a folder's name that are no text are as in Python: os.fsencode gives them back."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False).encode(errors="backslashreplace").decode()


_INFINITE: Final = (float("inf"), float("-inf"))


def _weak(result: Result, classes: Sequence[str]) -> list[tuple[str, float]]:
    """The worst classes, where there are more than two and one is far below the rest."""
    if result.recall is None or len(classes) <= 2:
        return []
    known = [(name, share) for name, share in zip(classes, result.recall, strict=True) if share is not None]
    worst = sorted(known, key=lambda pair: pair[1])[:WORST]
    if not worst or worst[0][1] >= result.accuracy - WEAK:
        return []
    return [(name, share) for name, share in worst if share < result.accuracy]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Names to the left, numbers to the right."""
    number, name, *rest = (cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join([number, name.strip().ljust(widths[1]), *rest]).rstrip()
