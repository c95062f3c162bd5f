"""`Task` is the base of all that is computed with one kind of labels; a module beside this one holds each task.

The trainer, the evaluation and the prediction call a task, and never ask which one it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from entrypoint import ExitCode, Failure, dump_json
from train import plugin
from train.config.schema import OptimConfig, is_factory
from train.data.batch import Batch
from train.data.shape import Shape
from train.evaluation.mistakes import Mistakes
from train.evaluation.results import EvaluationResult
from train.evaluation.totals import Measured, Model, Rows, Totals
from train.files import one_line
from train.tasks.class_balance import ClassWeights
from train.tasks.table import TargetScale

BoolArray = npt.NDArray[np.bool_]
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
Cell = str | float  # of a CSV table
Threshold = float | Literal["auto"] | Sequence[float]  # eval.threshold, or one of each label
DEFAULT_OPTIM: Final = OptimConfig()
LOSS_KEY: Final = "optim.loss"


@dataclass(slots=True, kw_only=True)
class StepLoss:
    """What a task computes for a micro batch: the loss to differentiate, and the values to log."""

    loss: Tensor  # [], the mean over the samples
    samples: int
    # For each of `Task.averaged` the sum [] over the samples, on the device, without a graph of operations.
    values: Mapping[str, Tensor]


def mixed(batch: Batch, of_labels: Callable[[Tensor], Tensor]) -> Tensor:
    """`of_labels` of the batch's labels, [n] or [n, ...]; of mixed images, that of both labels with their shares."""
    own = of_labels(batch["label"])
    if "share" not in batch:
        return own
    share: Tensor = batch["share"].view(-1, *[1] * (own.dim() - 1))
    return own * share + of_labels(batch["other"]) * (1 - share)


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
    """Everything that depends on the kind of labels.

    Of a batch (`train.data.batch`) a task takes `image`, for the model, and `label`; what else is in it changes how the
    samples count in the loss.
    """

    name: ClassVar[str]  # of its entry in the table
    averaged: ClassVar[tuple[str, ...]]  # the values of a training log line beside the loss
    classes: tuple[str, ...]  # the names of the model's outputs
    target: TargetScale | None = None
    optim: OptimConfig = DEFAULT_OPTIM  # of the training, for its loss
    own_loss: Callable[[Tensor, Tensor], Tensor] | None = None  # of outputs and labels; evaluations report the task's

    def for_training(self, labels: Tensor, device: torch.device) -> Self:
        """The task with all that its loss needs. labels: of all training samples. device: where it computes.

        A user's own loss is the function that optim.loss names, or an instance of the class.

        Raises:
            Failure: as `class_balance.class_weights` and `plugin.call_factory`.
        """
        if not is_factory(self.optim.loss):
            return self
        loss = plugin.load_factory(self.optim.loss, LOSS_KEY)
        if isinstance(loss, type):
            loss = plugin.call_factory(self.optim.loss, LOSS_KEY, factory=loss)
        return replace(self, own_loss=loss.to(device) if isinstance(loss, nn.Module) else loss)

    def collate(self, images: Any, labels: Tensor) -> Batch:
        """A batch of samples as their source has read them, and of their labels; or a whole split, kept in memory.

        images: stacked by the source, which decodes each one into its row: no copy is made. They are `EncodedBatch`es
        where a GPU decodes.
        """
        return {"image": images, "label": labels}

    def example(self, samples: int, shape: Shape, device: torch.device) -> Batch:
        """A batch to try a step or an evaluation with: black images, and labels that are zeros.

        It lies in memory as the loader's batches do: code is compiled for one layout.
        """
        channels, *size = shape.input
        images = torch.zeros((samples, *size, channels), device=device).movedim(-1, 1)
        return self.collate(images, self.example_labels(samples).to(device))

    def example_labels(self, samples: int) -> Tensor:
        """Labels of so many samples, before `collate`: all zeros, on the CPU."""
        return torch.zeros(samples)

    def loss(self, model: Model, batch: Batch) -> StepLoss:
        """The mean loss of a micro batch, and what is logged beside it. No host sync: each would cost a step's time."""
        outputs = model(batch["image"])
        loss = self.mean_loss(outputs, batch)
        with torch.no_grad():
            return StepLoss(loss=loss, samples=len(batch["label"]), values=self.sum_values(outputs, batch))

    def mean_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The mean loss [] over the samples of the batch, each with its `weight`."""
        losses = self.batch_losses(outputs, batch)
        return (losses * batch["weight"] if "weight" in batch else losses).mean()

    def batch_losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The loss of each sample, [n], also of mixed images: a loss that is linear in the labels is mixed itself."""
        return mixed(batch, partial(self.training_losses, outputs))

    def training_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each sample in training, [n]; a user's own may be the mean."""
        return (self.losses if self.own_loss is None else self.own_loss)(outputs, labels)

    @abstractmethod
    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The task's loss of each sample, [n]."""

    @abstractmethod
    def sum_values(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The sum [] of each of `averaged` over the samples of a micro batch, on the device. No host sync."""

    @property
    def choices_to_guess(self) -> int:
        """The number of choices of which a guess takes one: the loss of guessing is about the log of it."""
        return 2

    @abstractmethod
    def measure(self, model: Model, batch: Batch, *, details: bool) -> Measured:
        """What an evaluation adds up of a batch. No host sync. details: with the rows of which `image_results` asks.

        Raises:
            Failure: as `compute_outputs`.
        """

    @abstractmethod
    def metrics(self, totals: Totals, threshold: Threshold) -> tuple[EvaluationResult, Tensor | None]:
        """The result of an evaluation, and where classes are counted the confusion matrix, int64 [classes, classes]."""

    @abstractmethod
    def image_results(self, rows: Rows, thresholds: Sequence[float] | None) -> ImageResults:
        """The results of all images. rows: of `Totals`, with details. thresholds: of the evaluation."""

    def compute_outputs(self, model: Model, batch: Batch) -> Tensor:
        """The outputs for a batch, float32 [n, outputs].

        Raises:
            Failure: DATA for a network with another number of outputs.
        """
        outputs, expected = model(batch["image"]), (len(batch["label"]), len(self.classes))
        if outputs.shape != expected:
            raise Failure(
                "the model's outputs do not fit the data",
                found=f"logits of shape {list(outputs.shape)}",
                expected=f"{list(expected)}: one number for each of the {len(self.classes)} classes",
                fix="let the model's last layer have as many outputs as there are classes",
                code=ExitCode.DATA,
            )
        return outputs.float()

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
