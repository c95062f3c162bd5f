"""What a task measures of given outputs, on any number of ranks of this process."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import torch
from torch import Tensor

from train.data.batch import Batch
from train.evaluation.results import EvaluationResult
from train.evaluation.totals import EvaluationTotals, Totals
from train.tasks.base import Task


class RankThread:
    """The runtime of a rank that is a thread; `values` and `barrier` are those of all ranks."""

    device = torch.device("cpu")

    def __init__(self, rank: int, values: list[Any], barrier: Barrier) -> None:
        self.rank, self.values, self.barrier = rank, values, barrier

    def all_gather(self, value: Any) -> list[Any]:
        """Every rank's value."""
        self.values[self.rank] = value
        self.barrier.wait()
        gathered = [*self.values]
        self.barrier.wait()
        return gathered

    def all_reduce_sum(self, sums: Tensor) -> Tensor:
        """Sum over all ranks, in place."""
        return sums.copy_(torch.stack(self.all_gather(sums.clone())).sum(dim=0))


def as_batch(outputs: Tensor, labels: Tensor, first: int = 0) -> Batch:
    """A batch whose images are the outputs, of samples that are numbered from `first` on."""
    return {"image": outputs, "label": labels, "sample": torch.arange(first, first + len(labels))}


def in_batches(outputs: Tensor, labels: Tensor, size: int) -> list[Batch]:
    """Batches of so many samples."""
    return [
        as_batch(outputs[first : first + size], labels[first : first + size], first)
        for first in range(0, len(labels), size)
    ]


def measure(task: Task, batches: Sequence[Batch], *, details: bool = False) -> EvaluationTotals:
    """What one rank measures."""
    totals = EvaluationTotals()
    for batch in batches:
        totals.add(batch, task.measure(lambda images: images, batch, details=details))
    return totals


def read_together(ranks: Sequence[EvaluationTotals]) -> list[Totals]:
    """What each rank reads."""
    values, barrier = [None] * len(ranks), Barrier(len(ranks))
    with ThreadPoolExecutor(len(ranks)) as pool:
        return [*pool.map(lambda rank: ranks[rank].read(RankThread(rank, values, barrier)), range(len(ranks)))]  # type: ignore[arg-type]


def evaluate(task: Task, outputs: Tensor, labels: Tensor, threshold: Any = 0.5) -> tuple[EvaluationResult, Any]:
    """The result of one batch on one rank, and the confusion matrix as lists."""
    (totals,) = read_together([measure(task, [as_batch(outputs, labels)])])
    result, confusion = task.metrics(totals, threshold)
    return result, None if confusion is None else confusion.tolist()
