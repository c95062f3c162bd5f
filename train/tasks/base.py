"""`Task` is the base of all that is computed with one kind of labels; a module beside this one holds each task.

The trainer, the evaluation and the prediction call a task, and never ask which one it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entrypoint import dump_json
from train.config.schema import OptimConfig
from train.data.mixing import LabelMix
from train.evaluation.mistakes import Mistakes
from train.evaluation.results import EvaluationResult
from train.evaluation.scores import Columns, Counter
from train.files import one_line
from train.tasks.class_balance import ClassWeights
from train.tasks.table import TargetScale

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Cell = str | float  # of a CSV table
Threshold = float | Literal["auto"] | Sequence[float]  # eval.threshold, or one of each label


class TaskCriterion(ABC):
    """The training loss of a task: the mean over the samples of a micro batch."""

    __slots__ = ()

    def to(self, device: torch.device) -> Self:
        """The criterion with its tensors on `device`."""
        return self

    @abstractmethod
    def each(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each sample, [n]."""

    def losses(self, outputs: Tensor, labels: Tensor, mix: LabelMix | None) -> Tensor:
        """The loss of each sample, [n], also of mixed labels: what is linear in the labels is mixed itself."""
        losses = self.each(outputs, labels)
        return losses if mix is None else losses * mix.share + self.each(outputs, mix.other) * (1 - mix.share)

    def __call__(
        self, outputs: Tensor, labels: Tensor, sample_weights: Tensor | None = None, mix: LabelMix | None = None
    ) -> Tensor:
        """The mean loss []. sample_weights: float32 [n]; None: all 1. mix: of the labels of mixed images."""
        losses = self.losses(outputs, labels, mix)
        return (losses if sample_weights is None else losses * sample_weights).mean()


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageResults:
    """What an evaluation found for each image, in the order of the samples."""

    # The number of each image in its split.
    samples: Int64Array
    # The columns of a CSV table, and a row for each image.
    head: tuple[str, ...]
    cells: Iterable[Sequence[Cell]]
    # The images that are worth a look, and a diagram's values; of large data no more of them. Only a report calls it.
    find_mistakes: Callable[[EvaluationResult], Mistakes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a model says of one image file, as each form of output needs it."""

    path: Path
    # For a line of text; tabs come between them.
    texts: Sequence[str]
    # The highest output in words, for the caption of a picture.
    strongest: str
    # By the columns of a CSV table.
    cells: Mapping[str, Cell]
    # For JSON.
    values: Mapping[str, Any]

    def as_text(self) -> str:
        """The path and the prediction, separated by tabs."""
        return "\t".join([one_line(str(self.path)), *self.texts])

    def as_json(self, *, ascii_: bool = False) -> str:
        """One JSON object, see `dump_json`."""
        return dump_json({"path": str(self.path), **self.values}, ensure_ascii=ascii_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task(ABC):
    """Everything that depends on the kind of labels."""

    name: ClassVar[str]  # of its entry in the table
    averaged: ClassVar[tuple[str, ...]]  # the values of a training log line beside the loss, in the order of `measure`
    classes: tuple[str, ...]  # the names of the model's outputs
    target: TargetScale | None = None

    @abstractmethod
    def build_criterion(self, optim: OptimConfig, labels: Tensor) -> TaskCriterion:
        """The training loss. labels: of all training samples. Raises Failure: as `class_balance.class_weights`."""

    @abstractmethod
    def measure(self, outputs: Tensor, labels: Tensor, mix: LabelMix | None) -> tuple[Tensor, ...]:
        """The sum [] of each of `averaged` over the samples of a micro batch, on the device. No host sync."""

    def choices_to_guess(self, optim: OptimConfig) -> int:
        """The number of choices of which a guess takes one: the loss of guessing is about the log of it."""
        return 2

    @abstractmethod
    def build_counter(self, device: torch.device, *, optim: OptimConfig, threshold: Threshold) -> Counter:
        """What counts in an evaluation. optim: of the training, for its loss."""

    @abstractmethod
    def measure_images(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        """What an evaluation keeps of each image of a batch: tensors [n, ...]. No host sync."""

    @abstractmethod
    def image_results(self, samples: Int64Array, columns: Columns, thresholds: Sequence[float] | None) -> ImageResults:
        """The results of all images. columns: what `measure_images` kept. thresholds: of the evaluation."""

    @abstractmethod
    def predict(
        self,
        outputs: Tensor,
        paths: Sequence[Path],
        thresholds: tuple[float, ...] | None,
        *,
        top: int,
        all_classes: bool = False,
    ) -> list[Prediction | None]:
        """A prediction for each row of outputs; None for one that is not finite.

        top: how many of the likeliest classes are named. all_classes: whether the cells hold the probability of each
        class. Both act only where an image has one class.
        """

    @abstractmethod
    def describe_balance(self, training: Tensor, validation: Tensor, class_weights: ClassWeights) -> list[str]:
        """Lines for the banner about the labels of both splits. class_weights: optim.class_weights."""

    def count_images(self, labels: Tensor) -> dict[str, int]:
        """The images of each class or label; nothing for numbers."""
        return {}

    def map_labels(self, labels: Tensor, indices: Tensor, outputs: int) -> Tensor:
        """The labels for a model with more outputs. indices: int64 [classes], which of the outputs each class is."""
        return labels
