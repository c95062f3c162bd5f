"""These counters hold what a model predicts in an evaluation; a task chooses one.

One sums counts of classes on the device. The other keeps the outputs of all validation samples, for metrics that no
sum over batches gives. They are gathered from all ranks once, at the end. Nothing depends on the order of the samples,
so the metrics are the same on any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from entrypoint import ExitCode, Failure, shell_command
from train.data.batch import Batch
from train.evaluation.results import EvaluationResult
from train.metrics import TOP_K, Counts, recall_by_class
from train.tasks import CLASSIFICATION

Float64Array = npt.NDArray[np.float64]
Columns = tuple[npt.NDArray[Any], ...]
Gather = Callable[[Any], Sequence[Any]]
Model = Callable[[Tensor], Tensor]  # a network, or what computes with it: images -> outputs


class BatchStore:
    """Keeps tensors of this rank's batches on the device until they are read. A batch costs no host sync."""

    def __init__(self) -> None:
        self._batches: list[tuple[Tensor, ...]] = []

    def add(self, *tensors: Tensor) -> None:
        """Keep as many tensors [n, ...] as of the other batches."""
        self._batches.append(tensors)

    def own_columns(self) -> Columns | None:
        """Each of the tensors, those of all batches joined; None without a batch."""
        if not self._batches:
            return None
        return tuple(torch.cat(parts).cpu().numpy() for parts in zip(*self._batches, strict=True))

    def gather(self, all_gather: Gather) -> Columns | None:
        """The same of all ranks, in their order; None if no rank has a batch."""
        ranks = [columns for columns in all_gather(self.own_columns()) if columns is not None]
        return tuple(map(np.concatenate, zip(*ranks, strict=True))) or None


class OutputCounter:
    """Keeps the outputs and labels of this rank's samples on the device until they are read: `score` measures them.

    A batch costs no host sync.
    """

    def __init__(
        self,
        outputs: int,
        sample_losses: Callable[[Tensor, Tensor], Tensor],
        score: Callable[[Float64Array, Float64Array, float], EvaluationResult],
    ) -> None:
        """outputs: of the model. sample_losses: (outputs, labels) of a batch -> the losses [n], without weights.

        score: (outputs [n, outputs], labels [n, ...], the sum of the losses) of all ranks -> the result.
        """
        self._num_outputs, self._sample_losses, self._score = outputs, sample_losses, score
        self._store = BatchStore()

    def add(self, model: Model, batch: Batch) -> None:
        """Keep the outputs [n, outputs] for a batch, and its labels as the training has them.

        Raises:
            Failure: DATA for outputs of another shape.
        """
        outputs, labels = model(batch["image"]), batch["label"]
        if outputs.shape != (len(labels), self._num_outputs):
            raise outputs_shape_failure(outputs, len(labels), self._num_outputs)
        losses = self._sample_losses(outputs.float(), labels)
        self._store.add(outputs.float(), labels.float(), losses.double().sum()[None])

    def read(self, total: Callable[[Tensor], Tensor], all_gather: Gather) -> tuple[EvaluationResult, None]:
        """Return (result, None) over all ranks.

        Raises:
            Failure: DATA if no rank has added a sample.
        """
        if (columns := self._store.gather(all_gather)) is None:
            raise no_image_read_failure()
        outputs, labels, losses = (column.astype(np.float64) for column in columns)
        return self._score(outputs, labels, math.fsum(losses)), None


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

    def add(self, model: Model, batch: Batch) -> None:
        """Count a batch, whose labels are int64 [n]. No host sync.

        Raises:
            Failure: DATA for logits of another shape than [n, classes].
        """
        logits, labels = model(batch["image"]), batch["label"]
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
        recall = recall_by_class(counts) if self._classes <= MAX_CONFUSION_CLASSES else None
        result = EvaluationResult.of_counts(CLASSIFICATION, counts, recall=recall)
        cells = self._cells.long().cpu().view(self._classes, self._classes) if len(self._cells) else None
        return result, cells


Counter = ConfusionCounter | OutputCounter


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
