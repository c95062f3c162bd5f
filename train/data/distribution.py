"""From labels to how often each class is seen, in a few lines for people, and to the weights that make up for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from torch import Tensor

from entrypoint import ExitCode, Failure
from train.oneline import one_line

EVEN: Final = 1.5  # largest to smallest class: up to here one line says enough
MOST: Final = 20  # classes in a table; of more, the EXTREMES at both ends
EXTREMES: Final = 5

Counts = npt.NDArray[np.int64]
Weights = Literal["none", "balanced"] | list[float]


def counts(labels: Tensor, classes: int) -> Counts:
    """Samples of each class, int64 [classes], from labels int64 [n]."""
    return np.bincount(labels.numpy(), minlength=classes)


def balanced(counted: Sequence[int] | Counts, names: Sequence[str] = ()) -> list[float]:
    """The weights of `optim.class_weights: balanced`: samples / (classes x samples of the class).

    Over all samples their mean is 1, so that the loss keeps its scale.

    Raises:
        Failure: DATA for classes without a sample.
    """
    empty = [str(names[label] if names else label) for label, count in enumerate(counted) if count == 0]
    if empty or len(counted) == 0:
        raise Failure(
            "optim.class_weights: balanced needs samples of every class to train on",
            found=f"none of {', '.join(empty[:EXTREMES]) or 'any class'}{_more(len(empty) - EXTREMES)}",
            fix="give samples of them, remove these classes, or set optim.class_weights to one number for each class",
            code=ExitCode.DATA,
        )
    total = sum(int(count) for count in counted)
    return [total / (len(counted) * int(count)) for count in counted]


def lines(training: Tensor, held_out: Tensor, classes: Sequence[str], class_weights: Weights) -> list[str]:
    """For the banner: one line where the classes are about as large as each other, else a short table too.

    Args:
        training: labels int64 [n], held_out: likewise, may be empty.
        class_weights: optim.class_weights.
    """
    rows = _rows(counts(training, len(classes)), counts(held_out, len(classes)), classes, class_weights)
    least, most = min(row.training for row in rows), max(row.training for row in rows)
    first = f"{'classes':<14} {_span([row.training for row in rows])} samples of each for training"
    if len(held_out):
        first += f", {_span([row.held_out for row in rows])} held out"
    if most <= EVEN * least:
        return [first]
    return [f"{first}; {_unequal(least, most)}", *_table(rows, class_weights)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    name: str
    training: int
    held_out: int
    weight: float | None


def _rows(training: Counts, held_out: Counts, classes: Sequence[str], class_weights: Weights) -> list[_Row]:
    """The largest class first. The weights are the given ones, or those that `balanced` would give."""
    weights: Sequence[float | None] = [None] * len(classes)
    if isinstance(class_weights, list):
        weights = class_weights if len(class_weights) == len(classes) else weights
    elif training.all():
        weights = balanced(training)
    rows = [
        _Row(name=one_line(name), training=int(training[label]), held_out=int(held_out[label]), weight=weights[label])
        for label, name in enumerate(classes)
    ]
    return sorted(rows, key=lambda row: -row.training)


def _table(rows: Sequence[_Row], class_weights: Weights) -> list[str]:
    heading = {"none": "weight, if optim.class_weights=balanced", "balanced": "weight (balanced)"}
    title = heading[class_weights] if isinstance(class_weights, str) else "weight (given)"
    shown = list(rows) if len(rows) <= MOST else [*rows[:EXTREMES], *rows[-EXTREMES:]]
    width = max(len("class"), *(min(len(row.name), 40) for row in shown))
    table = [f"  {'class':<{width}} {'training':>10} {'held out':>10}  {title}"]
    table += [_line(row, width) for row in shown]
    if len(shown) < len(rows):
        table.insert(1 + EXTREMES, f"  ... and {len(rows) - len(shown):,} classes between these")
    return table


def _line(row: _Row, width: int) -> str:
    weight = "-" if row.weight is None else f"{row.weight:.4g}"
    return f"  {row.name[:40]:<{width}} {row.training:>10,} {row.held_out:>10,}  {weight}"


def _span(numbers: Sequence[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _unequal(least: int, most: int) -> str:
    if least == 0:
        return "some classes have no training sample"
    return f"the largest is {most / least:.3g} times the smallest"


def _more(number: int) -> str:
    return f" and {number} more" if number > 0 else ""
