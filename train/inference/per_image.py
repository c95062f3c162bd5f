"""Collects what a model says of each image during an evaluation, on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from train.data.splits import SampleIndices, SampleSource
from train.data.workers import UnreadableLog
from train.evaluation.scores import BatchStore, Columns
from train.inference import csv_table
from train.tasks.base import ImageResults, Int64Array

VALIDATION: Final = "validation"  # the name of the split in an UnreadableLog


class ResultCollector:
    """Keeps the results of this rank's batches on the device, and brings all ranks' together once, at the end."""

    def __init__(
        self,
        blocks: Sequence[SampleIndices],
        unreadable: UnreadableLog,
        measure: Callable[[Tensor, Tensor], tuple[Tensor, ...]],
    ) -> None:
        """blocks: as `BatchLoader.evaluate` gets them. unreadable: the loader's, which grows while it reads.

        measure: of outputs and labels, as `Task.measure_images`.
        """
        self._blocks, self._unreadable, self._measure = iter(blocks), unreadable, measure
        self.store = BatchStore()

    def add(self, outputs: Tensor, labels: Tensor) -> None:
        """Add the next batch. No host sync."""
        samples = next(self._readable_blocks())
        if len(samples) != len(labels):
            raise RuntimeError(f"{len(labels)} images were read of {len(samples)} that can be read")
        self.store.add(torch.from_numpy(samples), *self._measure(outputs, labels))

    def gather(self, all_gather: Callable[[Any], list[Any]]) -> tuple[Int64Array, Columns]:
        """(samples, columns) of all ranks, in the order of the samples, on every rank. One rank must have a batch."""
        samples, *columns = self.store.gather(all_gather) or ()
        order = np.argsort(samples)
        return samples[order], tuple(column[order] for column in columns)

    def _readable_blocks(self) -> Iterator[SampleIndices]:
        """The samples that could be read, of each block that has any: a loader leaves the others out."""
        for block in self._blocks:
            readable = [(VALIDATION, int(sample)) not in self._unreadable.unreadable for sample in block]
            if any(readable):
                yield block[readable]


def encode_table(results: ImageResults, source: SampleSource) -> bytes:
    """The CSV table of `train eval --per-image`."""
    head = "sample" if source.file_names is None else "path"
    rows = zip(source.names(results.samples), results.cells, strict=True)
    return csv_table.encode((head, *results.head), ((csv_table.path_cell(name), *cells) for name, cells in rows))
