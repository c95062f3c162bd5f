"""`Regression` is the task of one number for each image."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from torch import Tensor
from torch.nn.functional import huber_loss, l1_loss, mse_loss

from train.data.batch import Batch
from train.evaluation.mistakes import MAX_MISTAKES, Mistakes, NumberPairs, Selection, find_largest
from train.evaluation.results import EvaluationResult
from train.evaluation.totals import Measured, Model, Rows, Totals
from train.files import one_line
from train.metrics import ErrorSums
from train.tasks.base import (
    Float64Array,
    ImageResults,
    Int64Array,
    Prediction,
    Task,
    Threshold,
)
from train.tasks.class_balance import ClassWeights
from train.tasks.table import REGRESSION, TargetScale

MAX_POINTS: Final = 2000  # of a diagram
# optim.loss -> the distance. huber is squared up to one standard deviation, and linear beyond.
DISTANCES: Final[Mapping[str, Callable[..., Tensor]]] = {"l1": l1_loss, "l2": mse_loss, "huber": huber_loss}


def find_number_mistakes(name: str, numbers: Float64Array, predictions: Float64Array) -> Mistakes:
    """The largest errors, and the pairs of true and predicted numbers [images], in the unit of the labels."""
    errors = predictions - numbers
    finite = np.flatnonzero(np.isfinite(errors))
    largest = find_largest(np.abs(errors), MAX_MISTAKES).tolist()
    selection = Selection(
        title="The largest errors:",
        head=("true", "predicted", "error"),
        rows=largest,
        cells=[[f"{numbers[row]:.4g}", f"{predictions[row]:.4g}", f"{errors[row]:+.4g}"] for row in largest],
    )
    shown = evenly(finite, MAX_POINTS)
    pairs = NumberPairs(
        name=name,
        images=len(finite),
        mean_error=float(errors[finite].mean()) if len(finite) else 0.0,
        true=tuple(numbers[shown].tolist()),
        predicted=tuple(predictions[shown].tolist()),
    )
    return Mistakes(selections=(selection,), numbers=pairs)


def evenly(rows: Int64Array, most: int) -> Int64Array:
    """At most so many of the rows, at even distances."""
    return rows if len(rows) <= most else rows[np.arange(most) * len(rows) // most]


class Regression(Task):
    """One number for each image. Labels: float32 [n]. Outputs: the standardized number, [n, 1].

    The loss is a distance (optim.loss) in standard deviations of the training's numbers. Images are never mixed:
    distances are not linear in the labels.
    """

    name = REGRESSION
    averaged = ("mae",)

    @property
    def scale(self) -> TargetScale:
        """The scale of the training's numbers."""
        assert self.target is not None  # whoever reads numbers computes their scale, and records without it are refused
        return self.target

    def in_units(self, outputs: Tensor) -> Tensor:
        """The numbers [n], float64, in the unit of the labels."""
        return outputs.double().flatten() * self.scale.std + self.scale.mean

    def training_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if self.own_loss is None:
            return self.losses(outputs, labels)
        return self.own_loss(outputs.flatten(), self._standardize(labels))

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        distance = DISTANCES.get(self.optim.loss, mse_loss)
        return distance(outputs.float().flatten(), self._standardize(labels), reduction="none")

    def _standardize(self, labels: Tensor) -> Tensor:
        return (labels - self.scale.mean) / self.scale.std

    def sum_values(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The absolute errors."""
        return {"mae": (self.in_units(outputs) - batch["label"]).abs().sum()}

    def measure(self, model: Model, batch: Batch, *, details: bool) -> Measured:
        outputs, labels = self.compute_outputs(model, batch), batch["label"]
        rows = {"number": labels.double(), "prediction": self.in_units(outputs)}
        return Measured(loss=self.losses(outputs, labels).double().sum(), rows=rows)

    def metrics(self, totals: Totals, threshold: Threshold) -> tuple[EvaluationResult, Tensor | None]:
        """The errors of all samples, in the unit of the labels."""
        numbers = totals.rows["number"]
        errors = totals.rows["prediction"] - numbers
        mean = math.fsum(numbers) / len(numbers)
        sums = ErrorSums(
            samples=totals.samples,
            loss=totals.loss,
            absolute=math.fsum(np.abs(errors)),
            squared=math.fsum(errors**2),
            variation=math.fsum((numbers - mean) ** 2),
        )
        return EvaluationResult.of_counts(self.name, sums), None

    def image_results(self, rows: Rows, thresholds: Sequence[float] | None) -> ImageResults:
        numbers, predictions = rows["number"], rows["prediction"]
        return ImageResults(
            samples=rows["sample"],
            head=("number", "prediction", "error"),
            cells=zip(*(column.tolist() for column in (numbers, predictions, predictions - numbers)), strict=True),
            find_mistakes=lambda _: find_number_mistakes(self.classes[0], numbers, predictions),
        )

    def predict(
        self,
        outputs: Tensor,
        paths: Sequence[Path],
        thresholds: tuple[float, ...] | None,
        *,
        top: int,
        all_classes: bool = False,
    ) -> list[Prediction | None]:
        name = self.classes[0]
        return [
            Prediction(
                path=path,
                texts=[f"{number:.6g}"],
                strongest=f"{name} {number:.4g}",
                cells={name: number},
                values={"name": name, "value": number},
            )
            if math.isfinite(number)
            else None
            for path, number in zip(paths, self.in_units(outputs).tolist(), strict=True)
        ]

    def describe_balance(self, training: Tensor, validation: Tensor, class_weights: ClassWeights) -> list[str]:
        """The range of the numbers."""
        numbers = training.double()
        span = f"{numbers.min().item():.4g} to {numbers.max().item():.4g}"
        spread = f"mean {numbers.mean().item():.4g}, standard deviation {numbers.std(correction=0).item():.4g}"
        return [f"{'numbers':<14} {one_line(self.classes[0])}: {span}, {spread} (training)"]
