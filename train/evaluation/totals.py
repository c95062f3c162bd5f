"""`EvaluationTotals` brings together what a task measures of an evaluation's batches, over all ranks.

Counts are added on the device. Rows are kept for each sample: for metrics that no sum over batches gives, and for
results per image. They are gathered from all ranks once, at the end. Nothing depends on which rank measured which
batch, so the metrics are the same on any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entrypoint import ExitCode, Failure, shell_command
from train.data.batch import Batch
from train.distributed.runtime import Runtime

Model = Callable[[Tensor], Tensor]  # a network, or what computes with it: images -> outputs
Rows = Mapping[str, npt.NDArray[Any]]


@dataclass(slots=True, kw_only=True)
class Measured:
    """What a task measures of one batch, on the device."""

    loss: Tensor  # [], float64: the sum over the samples
    counts: Mapping[str, Tensor] = field(default_factory=dict)  # int64 of any shape: added over batches and ranks
    rows: Mapping[str, Tensor] = field(default_factory=dict)  # [n, ...]: kept for each sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What all ranks have measured, on the CPU."""

    samples: int
    loss: float  # the sum over the samples
    counts: Mapping[str, Tensor]
    rows: Rows  # by the names of `Measured.rows`, in the order of the samples; and `sample`, their numbers


class EvaluationTotals:
    """Adds what this rank measures, and reads it once, at the end. A batch costs no host sync."""

    def __init__(self) -> None:
        self._samples, self._losses = 0, list[Tensor]()
        self._counts, self._rows = dict[str, Tensor](), list[dict[str, Tensor]]()

    def add(self, batch: Batch, measured: Measured) -> None:
        """Add what was measured of a batch."""
        self._samples += len(batch["sample"])
        self._losses.append(measured.loss)
        for name, count in measured.counts.items():
            self._counts[name] = self._counts[name].add_(count) if name in self._counts else count
        if measured.rows:
            self._rows.append({"sample": batch["sample"], **measured.rows})

    def read(self, runtime: Runtime) -> Totals:
        """Return the totals of all ranks, which call it together.

        The losses of batches are added at once and rounded once: in any order their sum is the same.

        Raises:
            Failure: DATA if no rank has measured a sample.
        """
        names = self._rows[0] if self._rows else ()
        rows = {name: torch.cat([batch[name] for batch in self._rows]).cpu().numpy() for name in names}
        losses = torch.stack(self._losses).tolist() if self._losses else []
        shapes = {name: count.shape for name, count in self._counts.items()}
        ranks = [rank for rank in runtime.all_gather((self._samples, losses, shapes, rows)) if rank[0]]
        if not ranks:
            raise _no_image_read_failure()
        samples, batch_losses, counted, kept = zip(*ranks, strict=True)
        for name, shape in counted[0].items():  # a rank without a batch does not know what the others count
            if name not in self._counts:
                self._counts[name] = torch.zeros(shape, dtype=torch.int64, device=runtime.device)
            runtime.all_reduce_sum(self._counts[name])
        columns = {name: np.concatenate([rows[name] for rows in kept]) for name in kept[0]}
        order = np.argsort(columns.get("sample", []))
        return Totals(
            samples=sum(samples),
            loss=math.fsum(chain.from_iterable(batch_losses)),
            counts={name: count.cpu() for name, count in self._counts.items()},
            rows={name: column[order] for name, column in columns.items()},
        )


def _no_image_read_failure() -> Failure:
    """All validation images were unreadable."""
    fix = f"see `{shell_command('train data check', same_config=True)}`"
    return Failure("no validation image could be read", fix=fix, code=ExitCode.DATA)
