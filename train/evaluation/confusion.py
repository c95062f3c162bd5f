"""The confusion counter counts a model's predictions on the device.

All ranks sum their counts once, at the end, so the metrics are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from entrypoint import ExitCode, Failure, shell_command
from train.evaluation.results import EvaluationResult
from train.metrics import TOP_K, Counts, metrics_of, recall_by_class
from train.tasks import CLASSIFICATION

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
            raise Failure(
                "no validation image could be read",
                fix=f"see `{shell_command('train data check', same_config=True)}`",
                code=ExitCode.DATA,
            )
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


def build_confusion_counter(
    classes: int, device: torch.device, criterion: object, threshold: object
) -> ConfusionCounter:
    """The counter of a classification, whose metrics need neither the training's loss nor a threshold."""
    return ConfusionCounter(classes, device)


def outputs_shape_failure(logits: Tensor, samples: int, classes: int) -> Failure:
    """The Failure for a network with another number of outputs than there are classes."""
    return Failure(
        "the model's outputs do not fit the data",
        found=f"logits of shape {list(logits.shape)}",
        expected=f"[{samples}, {classes}]: one number for each of the {classes} classes",
        fix="let the model's last layer have as many outputs as there are classes",
        code=ExitCode.DATA,
    )
