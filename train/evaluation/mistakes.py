"""What a report shows of an evaluation: a choice of images that are worth a look, and the values of a diagram.

Each task chooses them, and `train.report` draws them. torch is not imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

MAX_MISTAKES: Final = 24  # images of one selection
MAX_HARD_CLASSES: Final = 10
MAX_HARD_IMAGES: Final = 3  # of each class


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationBin:
    """The images whose confidence is in one interval. confidence, accuracy: their means; 0 without images."""

    images: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How well confidence agrees with accuracy. bins: of equal width, from 0 to 1. error: the ECE."""

    error: float
    bins: tuple[CalibrationBin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelScore:
    """One label of several per image. images: that have it. predicted: that the model gives it. correct: both.

    average_precision: None without an image. threshold: the probability from which on the model gives the label.
    """

    name: str
    images: int
    predicted: int
    correct: int
    average_precision: float | None
    threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberPairs:
    """The true and the predicted number of some images, in the unit of the labels.

    name: of the number. images: all that were measured. mean_error: of all, prediction - number.
    """

    name: str
    images: int
    mean_error: float
    true: tuple[float, ...]
    predicted: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Images that are shown together. rows: of the results. cells: of each row, a text for each column of `head`.

    outputs: of each row, the output of the model that a heat map explains; None: the highest one.
    """

    title: str
    head: tuple[str, ...]
    rows: Sequence[int]
    cells: Sequence[Sequence[str]]
    outputs: Sequence[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistakes:
    """What the report shows of an evaluation. Of the others, those that the task has."""

    selections: tuple[Selection, ...]
    calibration: Calibration | None = None
    labels: tuple[LabelScore, ...] = ()
    numbers: NumberPairs | None = None


def find_largest(values: npt.NDArray[Any], most: int) -> npt.NDArray[np.int64]:
    """Where the largest of the values [n] are, at most so many, the largest first: of those that are finite."""
    finite = np.flatnonzero(np.isfinite(values))
    return finite[np.argsort(-values[finite], kind="stable")][:most]
