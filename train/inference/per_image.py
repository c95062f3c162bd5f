"""Collects what a model says of each image during an evaluation, on any number of ranks.

`train.tasks` names the class of results of each task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from train.data.splits import SampleIndices, SampleSource
from train.data.workers import UnreadableLog
from train.evaluation.scores import probabilities_of
from train.inference import csv_table
from train.inference.csv_table import Cell
from train.tasks import TargetScale

VALIDATION: Final = "validation"  # the name of the split in an UnreadableLog
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Columns = tuple[npt.NDArray[Any], ...]


class ImageResults(Protocol):
    """One entry for each evaluated image, in the order of the samples, of one task.

    HEAD: the columns of `cells`.
    """

    HEAD: ClassVar[tuple[str, ...]]

    @property
    def samples(self) -> Int64Array:
        """The number of each image in its split."""

    @classmethod
    def measure(cls, outputs: Tensor, labels: Tensor, target: TargetScale | None) -> tuple[Tensor, ...]:
        """What is kept of a batch: tensors [n, ...]. No host sync. target: of a training on numbers."""

    @classmethod
    def from_columns(cls, samples: Int64Array, columns: Columns, thresholds: Sequence[float] | None) -> Self:
        """The results of all images. columns: what `measure` kept. thresholds: of several labels per image."""

    def cells(self, classes: Sequence[str]) -> Iterator[Sequence[Cell]]:
        """A row of a CSV table for each image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassResults:
    """The class of each image.

    confidences: the probability of the predicted class. losses: cross-entropy in nats. Both are NaN where a logit is
    not finite.
    """

    HEAD: ClassVar = ("label", "prediction", "confidence", "loss")
    samples: Int64Array
    labels: Int64Array
    predictions: Int64Array
    confidences: Float32Array
    losses: Float32Array

    @classmethod
    def measure(cls, outputs: Tensor, labels: Tensor, target: TargetScale | None) -> tuple[Tensor, ...]:
        """Four numbers for each image. outputs: logits [n, classes]. labels: [n]."""
        logits = outputs.float()
        predictions = logits.argmax(dim=1)
        confidences = logits.softmax(dim=1).gather(1, predictions[:, None])[:, 0]
        return labels, predictions, confidences, cross_entropy(logits, labels, reduction="none")

    @classmethod
    def from_columns(cls, samples: Int64Array, columns: Columns, thresholds: Sequence[float] | None) -> Self:
        """As `ImageResults.from_columns`."""
        labels, predictions, confidences, losses = columns
        return cls(samples=samples, labels=labels, predictions=predictions, confidences=confidences, losses=losses)

    @property
    def correct(self) -> BoolArray:
        """Whether the prediction is the label."""
        return np.equal(self.labels, self.predictions)

    def cells(self, classes: Sequence[str]) -> Iterator[Sequence[Cell]]:
        """Both classes, and two numbers."""
        names = [csv_table.text_cell(name) for name in classes]
        columns = (self.labels, self.predictions, self.confidences, self.losses)
        for label, prediction, *numbers in zip(*(column.tolist() for column in columns), strict=True):
            yield (names[label], names[prediction], *map(csv_table.number_cell, numbers))


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelResults:
    """The labels of each image, [images, labels] each.

    probabilities: NaN where an output is not finite. label_losses: binary cross-entropy in nats. predicted: whether the
    probability is at least the label's threshold.
    """

    HEAD: ClassVar = ("labels", "predictions", "loss")
    samples: Int64Array
    labels: BoolArray
    predicted: BoolArray
    probabilities: Float64Array
    label_losses: Float64Array

    @classmethod
    def measure(cls, outputs: Tensor, labels: Tensor, target: TargetScale | None) -> tuple[Tensor, ...]:
        """The labels and the logits. outputs: logits [n, labels]. labels: 0 or 1 [n, labels]."""
        return labels > 0.5, outputs.float()

    @classmethod
    def from_columns(cls, samples: Int64Array, columns: Columns, thresholds: Sequence[float] | None) -> Self:
        """thresholds: of the evaluation, one for each label."""
        labels, logits = (torch.from_numpy(column) for column in columns)
        probabilities = probabilities_of(logits).numpy()
        losses = binary_cross_entropy_with_logits(logits.double(), labels.double(), reduction="none")
        return cls(
            samples=samples,
            labels=labels.numpy(),
            predicted=probabilities >= np.array(thresholds),
            probabilities=probabilities,
            label_losses=losses.numpy(),
        )

    @property
    def losses(self) -> Float64Array:
        """The loss of each image: the mean over its labels, as in the training."""
        means: Float64Array = self.label_losses.mean(axis=1)
        return means

    def cells(self, classes: Sequence[str]) -> Iterator[Sequence[Cell]]:
        """The labels of the image, those that the model gives it, and the loss."""
        for labels, predicted, loss in zip(self.labels, self.predicted, self.losses.tolist(), strict=True):
            names = (csv_table.text_cell(join_labels(each, classes)) for each in (labels, predicted))
            yield (*names, csv_table.number_cell(loss))


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberResults:
    """The number of each image, in the unit of the labels. predictions: NaN where an output is not finite."""

    HEAD: ClassVar = ("number", "prediction", "error")
    samples: Int64Array
    numbers: Float64Array
    predictions: Float64Array

    @classmethod
    def measure(cls, outputs: Tensor, labels: Tensor, target: TargetScale | None) -> tuple[Tensor, ...]:
        """Both numbers. outputs: standardized [n, 1]. labels: [n]. target: the scale of the training's numbers."""
        assert target is not None  # whoever reads numbers computes their scale
        return labels.double(), outputs[:, 0].double() * target.std + target.mean

    @classmethod
    def from_columns(cls, samples: Int64Array, columns: Columns, thresholds: Sequence[float] | None) -> Self:
        """As `ImageResults.from_columns`."""
        numbers, predictions = columns
        return cls(samples=samples, numbers=numbers, predictions=predictions)

    @property
    def errors(self) -> Float64Array:
        """Prediction - number."""
        return self.predictions - self.numbers

    def cells(self, classes: Sequence[str]) -> Iterator[Sequence[Cell]]:
        """The number, the prediction and the error."""
        columns = (self.numbers, self.predictions, self.errors)
        for row in zip(*(column.tolist() for column in columns), strict=True):
            yield [*map(csv_table.number_cell, row)]


def join_labels(has_label: BoolArray, classes: Sequence[str], separator: str = csv_table.LABEL_SEPARATOR) -> str:
    """The labels that one image has: dark|striped."""
    return separator.join(classes[index] for index in np.flatnonzero(has_label).tolist())


class ResultCollector:
    """Keeps the results of this rank's batches on the device, and brings all ranks' together once, at the end."""

    def __init__(
        self,
        blocks: Sequence[SampleIndices],
        unreadable: UnreadableLog,
        measure: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
    ) -> None:
        """blocks: as `BatchLoader.evaluate` gets them. unreadable: the loader's, which grows while it reads.

        measure: of outputs and labels, as `ImageResults.measure`.
        """
        self._blocks, self._unreadable, self._measure = iter(blocks), unreadable, measure
        self._samples: list[SampleIndices] = []
        self._batches: list[tuple[Tensor, ...]] = []

    def add(self, outputs: Tensor, labels: Tensor) -> None:
        """Add the next batch. No host sync."""
        samples = next(self._readable_blocks())
        if len(samples) != len(labels):
            raise RuntimeError(f"{len(labels)} images were read of {len(samples)} that can be read")
        self._samples.append(samples)
        self._batches.append(self._measure(outputs, labels))

    def own_columns(self) -> Columns | None:
        """The samples of this rank, and what was kept of each; None without a batch."""
        if not self._batches:
            return None
        columns = (torch.cat(parts).cpu().numpy() for parts in zip(*self._batches, strict=True))
        return (np.concatenate(self._samples), *columns)

    def gather(self, all_gather: Callable[[Any], list[Any]]) -> tuple[Int64Array, Columns]:
        """(samples, columns) of all ranks, in the order of the samples, on every rank. One rank must have a batch."""
        ranks = [columns for columns in all_gather(self.own_columns()) if columns is not None]
        samples, *columns = (np.concatenate(parts) for parts in zip(*ranks, strict=True))
        order = np.argsort(samples)
        return samples[order], tuple(column[order] for column in columns)

    def _readable_blocks(self) -> Iterator[SampleIndices]:
        """The samples that could be read, of each block that has any: a loader leaves the others out."""
        for block in self._blocks:
            readable = [(VALIDATION, int(sample)) not in self._unreadable.unreadable for sample in block]
            if any(readable):
                yield block[readable]


def encode_table(results: ImageResults, source: SampleSource, classes: Sequence[str]) -> bytes:
    """The CSV table of `train eval --per-image`."""
    head = "sample" if source.file_names is None else "path"
    rows = zip(source.names(results.samples), results.cells(classes), strict=True)
    return csv_table.encode((head, *results.HEAD), ((csv_table.path_cell(name), *cells) for name, cells in rows))
