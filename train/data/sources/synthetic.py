"""Holds the entry of `synthetic`, outlines that are drawn from the sample's number, and the counts of a long tail."""

from __future__ import annotations

import heapq
from typing import Final

from entrypoint import ExitCode, Failure
from train.config.batches import count_splits
from train.config.schema import DataConfig
from train.data.registry import DataSource


def check(data: DataConfig) -> None:
    if data.imbalance != 1:
        sizes = count_splits(data.samples, data)
        for samples in (sizes.training, sizes.validation, *([sizes.test] if sizes.test else [])):
            long_tail_counts(samples, data.classes, data.imbalance)


def long_tail_counts(samples: int, classes: int, imbalance: float) -> list[int]:
    """Samples of each class: class k's share is proportional to imbalance ** (-k / (classes - 1)).

    Rounded by the largest remainder, at least 1 each; all 0 if there are no samples.

    Raises:
        Failure: USAGE if there are fewer samples than classes.
    """
    if samples == 0:
        return [0] * classes
    if samples < classes:
        raise Failure(
            "data.imbalance needs a sample of every class in both splits",
            found=f"{samples} samples in one split, {classes} classes",
            expected=f"{classes} or more in each split",
            fix="set data.samples higher, data.classes lower, or data.val_fraction further from 0 and 1",
            code=ExitCode.USAGE,
        )
    weights = [imbalance ** (-label / (classes - 1)) for label in range(classes)]
    total = sum(weights)
    ideal = [round(samples * weight / total, 6) for weight in weights]  # rounded, to be the same with every libm
    counts = [max(1, int(share)) for share in ideal]
    by_rest = sorted(range(classes), key=lambda label: counts[label] - ideal[label])
    for label in by_rest[: max(0, samples - sum(counts))]:
        counts[label] += 1
    # What the minimum of 1 added is taken from the largest classes, one by one, to keep their order.
    largest = [(-count, -label) for label, count in enumerate(counts)]
    heapq.heapify(largest)
    for _ in range(sum(counts) - samples):
        count, label = largest[0]
        heapq.heapreplace(largest, (count + 1, label))
        counts[-label] -= 1
    return counts


SYNTHETIC: Final = DataSource(
    reader="synthetic:open_synthetic",
    count=lambda data: count_splits(data.samples, data),
    check=check,
    keys=frozenset({"frames", "classes", "samples", "imbalance", "val_fraction", "test_fraction"}),
    origin="computed",
    channels=3,
    has_class_names=True,
)
