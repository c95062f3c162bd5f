"""Computes the training loss: cross-entropy with label smoothing and class weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from entrypoint import ExitCode, Failure
from train.config.schema import OptimConfig
from train.data import statistics
from train.data.mixing import LabelMix


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """The mean loss of a micro batch, in nats.

    weights: float32 [classes], 1 on average over the training samples.

    The weighted sum is divided by the number of samples. torch's weighted mean divides it by the sum
    of the weights in the micro batch, so its gradients would change with the number of ranks.
    """

    label_smoothing: float
    weights: Tensor | None

    def to(self, device: torch.device) -> Criterion:
        """The criterion with its weights on `device`."""
        return self if self.weights is None else replace(self, weights=self.weights.to(device))

    def __call__(self, logits: Tensor, labels: Tensor, mix: LabelMix | None = None) -> Tensor:
        """logits: [n, classes]. labels: [n]. mix: of the labels of mixed images. Returns a scalar."""
        if mix is not None:
            # Cross-entropy is linear in its target: this is the loss of the mixed targets.
            own, other = self._of_each(logits, labels), self._of_each(logits, mix.other)
            return (own * mix.share + other * (1 - mix.share)).mean()
        if self.weights is None:
            return cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
        return self._of_each(logits, labels).mean()

    def _of_each(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The weighted loss of each sample, [n]."""
        each = cross_entropy(logits, labels, label_smoothing=self.label_smoothing, reduction="none")
        return each if self.weights is None else each * self.weights[labels]


def build_criterion(optim: OptimConfig, counts: Sequence[int]) -> Criterion:
    """Build the criterion of a run.

    Args:
        counts: training samples of each class.

    Raises:
        Failure: what `class_weights` raises.
    """
    return Criterion(label_smoothing=optim.label_smoothing, weights=class_weights(optim, counts))


def class_weights(optim: OptimConfig, counts: Sequence[int]) -> Tensor | None:
    """One weight for each class, float32 [classes]; None if all are 1.

    They are 1 on average over the training samples.

    Raises:
        Failure: USAGE for a list with another length, or if no sample gets a weight; DATA for a class
            without samples.
    """
    if optim.class_weights == "none":
        return None
    raw = statistics.balanced_class_weights(counts) if optim.class_weights == "balanced" else optim.class_weights
    if len(raw) != len(counts):
        raise _wrong_length_failure(len(raw), len(counts))
    weights, samples = torch.tensor(raw, dtype=torch.float64), torch.tensor(counts, dtype=torch.float64)
    normalized = (weights * samples.sum() / (weights * samples).sum()).float()
    if not normalized.isfinite().all():
        raise _zero_weight_failure(raw, counts)
    return normalized


def _zero_weight_failure(weights: Sequence[float], counts: Sequence[int]) -> Failure:
    return Failure(
        "optim.class_weights gives no weight to what is trained on",
        found=f"weights {list(weights)}, training samples {list(counts)}",
        fix="give a weight above 0 to a class that has training samples",
        code=ExitCode.USAGE,
    )


def _wrong_length_failure(num_weights: int, num_classes: int) -> Failure:
    return Failure(
        "optim.class_weights has another length than there are classes",
        found=f"{num_weights} weights",
        expected=f"{num_classes} classes",
        fix=f"give {num_classes} numbers in the order of the classes, or write balanced",
        code=ExitCode.USAGE,
    )
