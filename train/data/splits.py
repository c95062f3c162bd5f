"""Defines a data set as the training sees it: its splits, class names and sample shape."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from train.data.shape import Shape
from train.tasks import CLASSIFICATION, TargetScale

FLOAT32_BYTES: Final = 4  # floats of any width are read as float32
SampleIndices = npt.NDArray[np.int64]


class SampleSource(Protocol):
    """Images or clips by number, without randomness.

    Workers inherit it by forking: it need not be picklable, and holds no open file.
    """

    @property
    def labels(self) -> Tensor:
        """Integers [count], the class of each; of other tasks float32: 0 or 1 [count, classes], or numbers [count]."""

    def read(self, samples: SampleIndices) -> Tensor:
        """[n, *shape.stored], bytes (uint8) or float32. Raises Failure (DATA, NO_INPUT) naming the sample."""


def as_targets(labels: Tensor) -> Tensor:
    """Labels as the losses take them: classes as int64, in whatever width a source keeps them."""
    return labels if labels.is_floating_point() else labels.long()


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSplits:
    """The splits of the data. validation may be empty (data.val_fraction: 0).

    classes: the names of the model's outputs. task: what the labels are. target: of numbers, their scale.
    test: measured once at the end of a run, and never to choose anything; None if there is none.
    floats: whether samples are read as float32, not as bytes. notes, warnings: for the user, about the data.
    mirror: whether a sample's mirror image is of the same class, so that data.augment: standard may use it; false
    for digits, and if the class is a direction. shared: an open file whose offset forked processes would share.
    evaluation_shape: of validation and test samples, if it is another than `shape`.
    weights: how much each training sample counts in the loss, float32 [count], 1 on average; None: all alike.
    """

    training: SampleSource
    validation: SampleSource
    classes: tuple[str, ...]
    shape: Shape
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    mirror: bool = True
    floats: bool = False
    shared: str | None = None
    weights: Tensor | None = None
    task: str = CLASSIFICATION
    target: TargetScale | None = None
    test: SampleSource | None = None
    evaluation_shape: Shape | None = None

    @property
    def evaluated_shape(self) -> Shape:
        """Of validation and test samples."""
        return self.evaluation_shape or self.shape

    @property
    def bytes_(self) -> int:
        """The size of the training and validation samples as they are read."""
        training = len(self.training.labels) * math.prod(self.shape.stored)
        validation = len(self.validation.labels) * math.prod(self.evaluated_shape.stored)
        return (training + validation) * (FLOAT32_BYTES if self.floats else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmptySource:
    """An empty training split, since an evaluation does not read it."""

    labels: Tensor
    stored: tuple[int, ...]

    def read(self, samples: SampleIndices) -> Tensor:
        """An empty tensor [0, *stored]."""
        return torch.empty((0, *self.stored), dtype=torch.uint8)


def without_training(splits: DataSplits) -> DataSplits:
    """The same data with an empty training split, to evaluate without reading the training samples."""
    labels = torch.empty(0, dtype=torch.int64)
    return replace(splits, training=EmptySource(labels=labels, stored=tuple(splits.shape.stored)))


def with_test_as_validation(splits: DataSplits) -> DataSplits:
    """The same data with the test split in the place of the validation split. It must have a test split."""
    assert splits.test is not None
    return replace(splits, validation=splits.test)
