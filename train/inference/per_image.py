"""Collects what a model says of each image during an evaluation, on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from train.data.batch import Batch
from train.data.splits import SampleSource
from train.evaluation.scores import BatchStore, Columns, Model
from train.inference import csv_table
from train.tasks.base import ImageResults, Int64Array


class ResultCollector:
    """Keeps the results of this rank's batches on the device, and brings all ranks' together once, at the end."""

    def __init__(self, measure: Callable[[Model, Batch], tuple[Tensor, ...]]) -> None:
        """measure: as `Task.measure_images`."""
        self._measure, self.store = measure, BatchStore()

    def add(self, model: Model, batch: Batch) -> None:
        """Add the next batch, without the samples that could not be read. No host sync."""
        self.store.add(batch["sample"], *self._measure(model, batch))

    def gather(self, all_gather: Callable[[Any], list[Any]]) -> tuple[Int64Array, Columns]:
        """(samples, columns) of all ranks, in the order of the samples, on every rank. One rank must have a batch."""
        samples, *columns = self.store.gather(all_gather) or ()
        order = np.argsort(samples)
        return samples[order], tuple(column[order] for column in columns)


def encode_table(results: ImageResults, source: SampleSource) -> bytes:
    """The CSV table of `train eval --per-image`."""
    head = "sample" if source.file_names is None else "path"
    rows = zip(source.names(results.samples), results.cells, strict=True)
    return csv_table.encode((head, *results.head), ((csv_table.path_cell(name), *cells) for name, cells in rows))
