"""Chooses which samples are for validation and for the test, by class and by group.

The choice is not keyed by run.seed: runs with different seeds are evaluated on the same images. This module does not
import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from train import rng
from train.config import batches, schema
from train.config.batches import SplitCounts
from train.config.schema import DataConfig
from train.data import grouping

Labels = npt.NDArray[np.int64]
SampleMask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """Which samples are for validation and which for the test, bool [n]; the others are trained on.

    notes: about groups, for the banner.
    """

    validation: SampleMask
    test: SampleMask
    notes: tuple[str, ...] = ()

    @property
    def training(self) -> SampleMask:
        return ~(self.validation | self.test)


def partition_samples(
    labels: Labels, data: DataConfig, *, groups: Sequence[str] | None = None, has_validation: bool = False
) -> Partition:
    """Split by data.val_fraction or data.fold, and data.test_fraction: the same share of every class in each split.

    The test split is the same for every fold. Without groups the validation split of data.val_fraction does not depend
    on data.test_fraction.

    Args:
        groups: of each sample; no group is in two splits. None: each sample by itself.
        has_validation: the data has validation samples of its own, so that none of these are taken.

    Raises:
        Failure: DATA for groups that cannot be kept in one split.
    """
    if groups is not None:
        return _partition_by_group(labels, data, groups, has_validation=has_validation)
    counts = batches.count_splits(len(labels), data, has_validation=has_validation)
    if not counts.validation and not counts.test:  # sorting millions takes seconds
        return Partition(validation=np.zeros(len(labels), bool), test=np.zeros(len(labels), bool))
    validation, test = np.zeros(len(labels), bool), np.zeros(len(labels), bool)
    for mask, chosen in zip((validation, test), split_order(order_by_share(labels), data, counts), strict=True):
        mask[chosen] = True
    return Partition(validation=validation, test=test)


def split_order(
    order: npt.NDArray[Any], data: DataConfig, counts: SplitCounts
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The parts of `order_by_share` that are for validation and for the test."""
    rest = order[: len(order) - counts.test]
    first = batches.fold_bounds(len(rest), data.fold)[0] if data.fold is not None else 0
    return rest[first : first + counts.validation], order[len(rest) :]


def order_by_share(labels: Labels) -> npt.NDArray[np.int64]:
    """All samples in an order of which every part holds about the same share of each class."""
    order = rng.permutation(len(labels), rng.SPLIT)
    _, numbers, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    by_class = order[np.argsort(numbers[order], kind="stable")]
    of_class = numbers[by_class]
    share = np.empty(len(labels))
    share[by_class] = (np.arange(len(labels)) - (np.cumsum(sizes) - sizes)[of_class] + 0.5) / sizes[of_class]
    return np.argsort(share, kind="stable")


def _partition_by_group(labels: Labels, data: DataConfig, groups: Sequence[str], *, has_validation: bool) -> Partition:
    """The test groups are chosen first, from all samples, so that they are the same for every fold."""
    counts = batches.count_splits(len(labels), data, has_validation=has_validation)
    test = grouping.validation_mask_by_group(labels, groups, counts.test)
    rest = np.flatnonzero(~test)
    names = [groups[sample] for sample in rest.tolist()]
    if has_validation:
        chosen = np.zeros(len(rest), bool)
    elif data.fold is not None:
        number, parts = schema.parse_fold(data.fold) or (1, 1)
        chosen = grouping.fold_by_group(labels[rest], names, parts) == number - 1
    else:
        chosen = grouping.validation_mask_by_group(labels[rest], names, counts.validation)
    validation = np.zeros(len(labels), bool)
    validation[rest[chosen]] = True
    notes = []
    if not has_validation:
        key = "data.fold" if data.fold is not None else "data.val_fraction"
        notes.append(grouping.describe_split(groups, validation, counts.validation, name="val", key=key))
    if counts.test:
        notes.append(grouping.describe_split(groups, test, counts.test, name="test", key="data.test_fraction"))
    return Partition(validation=validation, test=test, notes=tuple(notes))
