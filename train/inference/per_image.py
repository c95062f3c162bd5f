"""Collects the prediction, confidence and loss of each image during an evaluation, on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from train.data.splits import SampleIndices
from train.data.workers import UnreadableLog
from train.inference import csv_table
from train.inference.csv_table import Cell

VALIDATION: Final = "validation"  # the name of the split in an UnreadableLog
Int64Array = npt.NDArray[np.int64]
Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageResults:
    """One entry for each evaluated image, in the order of the samples.

    confidences: the probability of the predicted class. losses: cross-entropy in nats. Both are NaN where a logit is
    not finite.
    """

    samples: Int64Array
    labels: Int64Array
    predictions: Int64Array
    confidences: Float32Array
    losses: Float32Array

    @property
    def correct(self) -> npt.NDArray[np.bool_]:
        """Whether the prediction is the label."""
        return np.equal(self.labels, self.predictions)


class ResultCollector:
    """Keeps the results of this rank's batches on the device, and brings all ranks' together once, at the end."""

    def __init__(self, blocks: Sequence[SampleIndices], unreadable: UnreadableLog) -> None:
        """blocks: as `BatchLoader.evaluate` gets them. unreadable: the loader's, which grows while it reads."""
        self._blocks, self._unreadable = iter(blocks), unreadable
        self._samples: list[SampleIndices] = []
        self._integers: list[Tensor] = []
        self._floats: list[Tensor] = []

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Add the next batch: [n, classes] and int64 [n]. No host sync."""
        samples = next(self._readable_blocks())
        if len(samples) != len(labels):
            raise RuntimeError(f"{len(labels)} images were read of {len(samples)} that can be read")
        logits = logits.float()
        predictions = logits.argmax(dim=1)
        confidences = logits.softmax(dim=1).gather(1, predictions[:, None])[:, 0]
        losses = cross_entropy(logits, labels, reduction="none")
        self._samples.append(samples)
        self._integers.append(torch.stack([labels, predictions]))
        self._floats.append(torch.stack([confidences, losses]))

    def gather(self, all_gather: Callable[[Any], list[Any]]) -> ImageResults:
        """The results of all ranks, on every rank."""
        samples = np.concatenate([np.empty(0, np.int64), *self._samples])
        integers = torch.cat(self._integers, dim=1).cpu().numpy() if self._integers else np.empty((2, 0), np.int64)
        floats = torch.cat(self._floats, dim=1).cpu().numpy() if self._floats else np.empty((2, 0), np.float32)
        ranks = all_gather((samples, integers, floats))
        samples, integers, floats = (np.concatenate(parts, axis=-1) for parts in zip(*ranks, strict=True))
        order = np.argsort(samples)
        (labels, predictions), (confidences, losses) = integers[:, order], floats[:, order]
        return ImageResults(
            samples=samples[order], labels=labels, predictions=predictions, confidences=confidences, losses=losses
        )

    def _readable_blocks(self) -> Iterator[SampleIndices]:
        """The samples that could be read, of each block that has any: a loader leaves the others out."""
        for block in self._blocks:
            readable = [(VALIDATION, int(sample)) not in self._unreadable.unreadable for sample in block]
            if any(readable):
                yield block[readable]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleNames:
    """What a user calls each sample. head: what the names are, as the head of a column (`path`, `sample`)."""

    head: str
    names: Sequence[str]

    def cell(self, sample: int) -> str:
        """The name of one sample, as a cell of a table."""
        return csv_table.path_cell(str(self.names[sample]))


def encode_table(results: ImageResults, names: SampleNames, classes: Sequence[str]) -> bytes:
    """The CSV table of `train eval --per-image`."""
    labels = [csv_table.text_cell(name) for name in classes]
    columns = (results.samples, results.labels, results.predictions, results.confidences, results.losses)

    def rows() -> Iterator[Sequence[Cell]]:
        for sample, label, prediction, confidence, loss in zip(*(column.tolist() for column in columns), strict=True):
            yield (
                names.cell(sample),
                labels[label],
                labels[prediction],
                csv_table.number_cell(confidence),
                csv_table.number_cell(loss),
            )

    return csv_table.encode((names.head, "label", "prediction", "confidence", "loss"), rows())
