"""Computes the class counts of a long-tailed data set. This module does not import torch."""

from __future__ import annotations

import heapq

from entrypoint import ExitCode, Failure


def long_tail_counts(samples: int, classes: int, imbalance: float) -> list[int]:
    """Samples of each class: class k's share is proportional to imbalance ** (-k / (classes - 1)).

    Rounded by the largest remainder, at least 1 each; all 0 if there are no samples.

    Raises:
        Failure: USAGE if there are fewer samples than classes.
    """
    if samples == 0:
        return [0] * classes
    if samples < classes:
        raise _too_few_samples_failure(samples, classes)
    weights = [imbalance ** (-label / (classes - 1)) for label in range(classes)]
    total = sum(weights)
    ideal = [round(samples * weight / total, 6) for weight in weights]  # rounded, to be the same with every libm
    counts = [max(1, int(share)) for share in ideal]
    by_rest = sorted(range(classes), key=lambda label: counts[label] - ideal[label])
    for label in by_rest[: max(0, samples - sum(counts))]:
        counts[label] += 1
    _take_surplus_from_largest(counts, sum(counts) - samples)
    return counts


def _take_surplus_from_largest(counts: list[int], surplus: int) -> None:
    """Take the samples that the minimum of 1 added from the largest classes, one by one, to keep their order."""
    largest = [(-count, -label) for label, count in enumerate(counts)]
    heapq.heapify(largest)
    for _ in range(surplus):
        count, label = largest[0]
        heapq.heapreplace(largest, (count + 1, label))
        counts[-label] -= 1


def _too_few_samples_failure(samples: int, classes: int) -> Failure:
    return Failure(
        "data.imbalance needs a sample of every class in both splits",
        found=f"{samples} samples in one split, {classes} classes",
        expected=f"{classes} or more in each split",
        fix="set data.samples higher, data.classes lower, or data.val_fraction further from 0 and 1",
        code=ExitCode.USAGE,
    )
