"""Computes the class counts of a long-tailed data set. This module does not import torch."""

from __future__ import annotations

import heapq

from entrypoint import ExitCode, Failure


def long_tail_counts(samples: int, classes: int, imbalance: float) -> list[int]:
    """Samples of each class: class k's share is proportional to imbalance ** (-k / (classes - 1)).

    Whole numbers by the largest remainder, at least 1 each. No samples are no samples of any class.

    Raises:
        Failure: USAGE, where there are fewer samples than classes.
    """
    if samples == 0:
        return [0] * classes
    if samples < classes:
        raise _too_few_samples_failure(samples, classes)
    weights = [imbalance ** (-label / (classes - 1)) for label in range(classes)]
    whole = sum(weights)
    ideal = [round(samples * weight / whole, 6) for weight in weights]  # the same on every machine's libm
    found = [max(1, int(share)) for share in ideal]
    by_rest = sorted(range(classes), key=lambda label: found[label] - ideal[label])
    for label in by_rest[: max(0, samples - sum(found))]:
        found[label] += 1
    _take_surplus_from_largest(found, sum(found) - samples)
    return found


def _take_surplus_from_largest(found: list[int], surplus: int) -> None:
    """What the rarest classes got beyond their share comes from the commonest, one by one, so that they stay so."""
    largest = [(-count, -label) for label, count in enumerate(found)]
    heapq.heapify(largest)
    for _ in range(surplus):
        count, label = largest[0]
        heapq.heapreplace(largest, (count + 1, label))
        found[-label] -= 1


def _too_few_samples_failure(samples: int, classes: int) -> Failure:
    return Failure(
        "data.imbalance needs a sample of every class on both sides of the split",
        found=f"{samples} samples on one side, {classes} classes",
        expected=f"{classes} or more on each side",
        fix="set data.samples higher, data.classes lower, or data.val_fraction further from 0 and 1",
        code=ExitCode.USAGE,
    )
