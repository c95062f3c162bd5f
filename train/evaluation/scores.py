"""These counters hold what a model predicts in an evaluation, one for each task.

A classification sums counts on the device. The others keep the outputs of all validation samples, for metrics that no
sum over batches gives. They are gathered from all ranks once, at the end. Nothing depends on the order of the samples,
so the metrics are the same on any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from entrypoint import ExitCode, Failure, shell_command
from train.evaluation.results import EvaluationResult
from train.metrics import TOP_K, Counts, ErrorSums, metrics_of, recall_by_class
from train.tasks import CLASSIFICATION, MULTI_LABEL, REGRESSION, TargetScale

Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Gather = Callable[[Any], Sequence[Any]]


class SampleLoss(Protocol):
    """A training loss that can be read sample by sample. target: of a loss for numbers."""

    target: TargetScale

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each sample, [n], without weights."""


class OutputStore:
    """The outputs and labels of this rank's samples, on the device until they are read. A batch costs no host sync."""

    def __init__(self, outputs: int, criterion: SampleLoss) -> None:
        """outputs: of the model."""
        self._num_outputs, self._criterion = outputs, criterion
        self._outputs: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._losses: list[Tensor] = []

    def add(self, outputs: Tensor, labels: Tensor) -> None:
        """Keep a batch: [n, outputs], and labels as the training has them.

        Raises:
            Failure: DATA for outputs of another shape.
        """
        if outputs.shape != (len(labels), self._num_outputs):
            raise outputs_shape_failure(outputs, len(labels), self._num_outputs)
        self._outputs.append(outputs.float())
        self._labels.append(labels.float())
        self._losses.append(self._criterion.each(outputs.float(), labels).double().sum())

    def gather(self, all_gather: Gather) -> tuple[Float64Array, Float64Array, float]:
        """(outputs [n, outputs], labels [n, ...], the sum of the losses) of all ranks.

        Raises:
            Failure: DATA if no rank has added a sample.
        """
        own = None
        if self._losses:
            losses = torch.stack(self._losses).tolist()
            own = (torch.cat(self._outputs).cpu().numpy(), torch.cat(self._labels).cpu().numpy(), losses)
        parts = [part for part in all_gather(own) if part is not None]
        if not parts:
            raise no_image_read_failure()
        outputs, labels, losses_by_rank = zip(*parts, strict=True)
        total = math.fsum(chain.from_iterable(losses_by_rank))
        return np.concatenate(outputs).astype(np.float64), np.concatenate(labels).astype(np.float64), total


class MultiLabelCounter:
    """Measures several labels per sample: average precision and F1 of each label."""

    def __init__(
        self,
        classes: int,
        device: torch.device,
        criterion: SampleLoss,
        threshold: float | Literal["auto"] | Sequence[float],
    ) -> None:
        """threshold: of the probability, of all labels or of each.

        auto: for each label the one with the best F1 on these samples.
        """
        self._store, self._threshold = OutputStore(classes, criterion), threshold

    def add(self, outputs: Tensor, labels: Tensor) -> None:
        """Keep a batch: logits [n, classes] and 0 or 1 [n, classes]. Raises Failure: as `OutputStore.add`."""
        self._store.add(outputs, labels)

    def read(self, total: Callable[[Tensor], Tensor], all_gather: Gather) -> tuple[EvaluationResult, None]:
        """Return (result, None) over all ranks. Raises Failure: as `OutputStore.gather`."""
        logits, labels, loss = self._store.gather(all_gather)
        probabilities, is_positive = probabilities_of(torch.from_numpy(logits)).numpy(), labels > 0.5
        columns = [(probabilities[:, label], is_positive[:, label]) for label in range(labels.shape[1])]
        precision = tuple(average_precision(*column) for column in columns)
        thresholds = self._choose_thresholds(columns)
        predicted = probabilities >= np.array(thresholds)
        counts = Counts(
            samples=len(labels),
            loss=loss,
            top5_correct=math.nan,
            correct=(predicted & is_positive).sum(axis=0).tolist(),
            predicted=predicted.sum(axis=0).tolist(),
            support=is_positive.sum(axis=0).tolist(),
            average_precision=precision,
        )
        values = {name: metric.compute(counts) for name, metric in metrics_of(MULTI_LABEL).items()}
        result = EvaluationResult(
            samples=len(labels), values=values, task=MULTI_LABEL, average_precision=precision, thresholds=thresholds
        )
        return result, None

    def _choose_thresholds(self, columns: Sequence[tuple[Float64Array, BoolArray]]) -> tuple[float, ...]:
        """One threshold for each label. columns: its probabilities, and which samples have it."""
        if self._threshold == "auto":
            return tuple(best_threshold(*column) for column in columns)
        if isinstance(self._threshold, float | int):
            return (float(self._threshold),) * len(columns)
        return tuple(self._threshold)


class ErrorCounter:
    """Measures numbers: the errors of the predictions, in the unit of the labels."""

    def __init__(
        self, classes: int, device: torch.device, criterion: SampleLoss, threshold: float | Literal["auto"]
    ) -> None:
        self._store, self._target = OutputStore(classes, criterion), criterion.target

    def add(self, outputs: Tensor, labels: Tensor) -> None:
        """Keep a batch: standardized predictions [n, 1], and numbers [n]. Raises Failure: as `OutputStore.add`."""
        self._store.add(outputs, labels)

    def read(self, total: Callable[[Tensor], Tensor], all_gather: Gather) -> tuple[EvaluationResult, None]:
        """Return (result, None) over all ranks. Raises Failure: as `OutputStore.gather`."""
        outputs, labels, loss = self._store.gather(all_gather)
        errors = outputs[:, 0] * self._target.std + self._target.mean - labels
        mean = math.fsum(labels) / len(labels)
        sums = ErrorSums(
            samples=len(labels),
            loss=loss,
            absolute=math.fsum(np.abs(errors)),
            squared=math.fsum(errors**2),
            variation=math.fsum((labels - mean) ** 2),
        )
        values = {name: metric.compute(sums) for name, metric in metrics_of(REGRESSION).items()}
        return EvaluationResult(samples=len(labels), values=values, task=REGRESSION), None


def probabilities_of(logits: Tensor) -> Tensor:
    """The probability of each label, float64 [n, labels] on the CPU."""
    return logits.double().sigmoid()


def average_precision(scores: Float64Array, is_positive: BoolArray) -> float | None:
    """The sum over thresholds of precision x gain in recall: scikit-learn's average_precision_score.

    Samples with equal scores are one threshold, so their order does not matter. None without a positive sample.
    """
    if not is_positive.any():
        return None
    correct, predicted, _ = _counts_by_threshold(scores, is_positive)
    gains = np.diff(correct, prepend=0) / is_positive.sum()
    return math.fsum(gains * correct / predicted)


def best_threshold(scores: Float64Array, is_positive: BoolArray) -> float:
    """The threshold with the best F1, in the middle between two scores; 0.5 without a positive sample."""
    if not is_positive.any():
        return 0.5
    correct, predicted, values = _counts_by_threshold(scores, is_positive)
    best = int(np.argmax(2 * correct / (predicted + is_positive.sum())))
    below = values[best + 1] if best + 1 < len(values) else 0.0
    return float((values[best] + below) / 2)


def _counts_by_threshold(
    scores: Float64Array, is_positive: BoolArray
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """For each distinct score, the highest first: positive samples and samples that reach it, and the score."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    ends = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
    return np.cumsum(is_positive[order])[ends].astype(np.float64), ends + 1.0, ordered[ends]


BatchLosses = list[float]
MAX_CONFUSION_CLASSES: Final = 1000  # classes up to which recall and the confusion matrix are kept: 8 MB of counts


class ConfusionCounter:
    """Counts predictions in one float64 tensor (exact up to 2**53), which all ranks sum once.

    The tensor holds the number of samples, and of samples whose class is among the top five. For each class it
    holds the correct predictions, all predictions and the samples (support). Up to MAX_CONFUSION_CLASSES classes
    it also holds how often each class [row] was predicted as each [column]. The losses of batches are kept
    separately: their sum is rounded once, so it does not depend on which rank computed which batch.
    """

    def __init__(self, classes: int, device: torch.device) -> None:
        self._classes = classes
        cells = classes * classes if classes <= MAX_CONFUSION_CLASSES else 0
        self._flat = torch.zeros(2 + 3 * classes + cells, dtype=torch.float64, device=device)
        self._sums, self._cells = self._flat[:2], self._flat[2 + 3 * classes :]
        self._correct, self._predicted, self._support = self._flat[2 : 2 + 3 * classes].view(3, classes)
        self._losses: list[Tensor] = []

    def add(self, logits: Tensor, labels: Tensor) -> None:
        """Count a batch: [n, classes] and int64 [n]. No host sync.

        Raises:
            Failure: DATA for logits of another shape.
        """
        if logits.shape != (len(labels), self._classes):
            raise outputs_shape_failure(logits, len(labels), self._classes)
        logits = logits.float()
        predictions, ones = logits.argmax(dim=1), torch.ones(len(labels), dtype=torch.float64, device=logits.device)
        top5_correct = (logits.topk(min(TOP_K, self._classes)).indices == labels[:, None]).sum()
        self._losses.append(cross_entropy(logits, labels, reduction="none").double().sum())
        self._sums += torch.stack([ones.sum(), top5_correct.double()])
        self._correct.index_add_(0, labels, (predictions == labels).double())
        self._predicted.index_add_(0, predictions, ones)
        self._support.index_add_(0, labels, ones)
        if len(self._cells):
            self._cells.index_add_(0, labels * self._classes + predictions, ones)

    def read(
        self, total: Callable[[Tensor], Tensor], all_gather: Callable[[BatchLosses], Sequence[BatchLosses]]
    ) -> tuple[EvaluationResult, Tensor | None]:
        """Return (result, confusion matrix int64 [classes, classes] on the CPU) over all ranks.

        total: sums over ranks in place. all_gather: returns all ranks' lists.

        Raises:
            Failure: DATA if no rank has added a sample.
        """
        total(self._flat)
        losses = all_gather(torch.stack(self._losses).tolist() if self._losses else [])
        samples, top5_correct = self._sums.tolist()
        if not samples:
            raise no_image_read_failure()
        counts = Counts(
            samples=int(samples),
            loss=math.fsum(chain.from_iterable(losses)),
            top5_correct=top5_correct,
            correct=self._correct.tolist(),
            predicted=self._predicted.tolist(),
            support=self._support.tolist(),
        )
        result = EvaluationResult(
            samples=counts.samples,
            values={name: metric.compute(counts) for name, metric in metrics_of(CLASSIFICATION).items()},
            recall=recall_by_class(counts) if self._classes <= MAX_CONFUSION_CLASSES else None,
        )
        cells = self._cells.long().cpu().view(self._classes, self._classes) if len(self._cells) else None
        return result, cells


# What an evaluation of each task counts.
Counter = ConfusionCounter | MultiLabelCounter | ErrorCounter


def build_confusion_counter(
    classes: int, device: torch.device, criterion: object, threshold: object
) -> ConfusionCounter:
    """The counter of a classification, whose metrics need neither the training's loss nor a threshold."""
    return ConfusionCounter(classes, device)


def no_image_read_failure() -> Failure:
    """All validation images were unreadable."""
    fix = f"see `{shell_command('train data check', same_config=True)}`"
    return Failure("no validation image could be read", fix=fix, code=ExitCode.DATA)


def outputs_shape_failure(logits: Tensor, samples: int, classes: int) -> Failure:
    """The Failure for a network with another number of outputs than there are classes."""
    return Failure(
        "the model's outputs do not fit the data",
        found=f"logits of shape {list(logits.shape)}",
        expected=f"[{samples}, {classes}]: one number for each of the {classes} classes",
        fix="let the model's last layer have as many outputs as there are classes",
        code=ExitCode.DATA,
    )
