"""Computes the training loss of each task: cross-entropy for classes and labels, distances for numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol, Self

import torch
from torch import Tensor
from torch.nn.functional import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    huber_loss,
    l1_loss,
    mse_loss,
    one_hot,
)

from entrypoint import ExitCode, Failure
from train.config.schema import OptimConfig
from train.data import statistics
from train.data.mixing import LabelMix
from train.data.splits import DataSplits
from train.tasks import TASKS, TargetScale


class TaskCriterion(Protocol):
    """The training loss of a task."""

    def to(self, device: torch.device) -> Self:
        """The criterion with its tensors on `device`."""

    def __call__(
        self, logits: Tensor, labels: Tensor, sample_weights: Tensor | None = None, mix: LabelMix | None = None
    ) -> Tensor:
        """The mean loss [] of a micro batch. logits: the model's outputs.

        sample_weights: float32 [n]; None: all 1. mix: of the labels of mixed images.
        """


def mean_loss(
    each: Callable[[Tensor], Tensor], labels: Tensor, sample_weights: Tensor | None, mix: LabelMix | None
) -> Tensor:
    """The mean of each sample's loss, [].

    each: the losses [n] for labels, linear in them as cross-entropy is: then this is the loss of mixed labels.
    """
    losses = each(labels)
    if mix is not None:
        losses = losses * mix.share + each(mix.other) * (1 - mix.share)
    return (losses if sample_weights is None else losses * sample_weights).mean()


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """The mean loss of a micro batch, in nats.

    weights: float32 [classes], 1 on average over the training samples. A sample's whole loss, with the smoothed part,
    is multiplied by the weight of its class, as if the sample were drawn so often. torch weights each class's share of
    the smoothed label instead: the two differ with label_smoothing.

    The weighted sum is divided by the number of samples. torch's weighted mean divides it by the sum
    of the weights in the micro batch, so its gradients would change with the number of ranks.
    """

    label_smoothing: float
    weights: Tensor | None

    def to(self, device: torch.device) -> Self:
        """The criterion with its weights on `device`."""
        return self if self.weights is None else replace(self, weights=self.weights.to(device))

    def __call__(
        self, logits: Tensor, labels: Tensor, sample_weights: Tensor | None = None, mix: LabelMix | None = None
    ) -> Tensor:
        """logits: [n, classes]. labels: [n]. Returns a scalar. Others: as in `TaskCriterion`."""
        if self.weights is None and sample_weights is None and mix is None:
            return cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
        return mean_loss(partial(self.each, logits), labels, sample_weights, mix)

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The weighted loss of each sample, [n]."""
        each = cross_entropy(logits, labels, label_smoothing=self.label_smoothing, reduction="none")
        return each if self.weights is None else each * self.weights[labels]


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryCriterion:
    """The mean binary cross-entropy over samples and classes, in nats: each class is its own question.

    Wightman et al.: ResNet strikes back (2021). weights: of the classes, as in `Criterion`. threshold: targets above it
    are 1, and 0 otherwise, so that a mixed image has both labels; None: targets as they are mixed and smoothed.
    """

    label_smoothing: float
    weights: Tensor | None
    threshold: float | None

    def to(self, device: torch.device) -> Self:
        """The criterion with its weights on `device`."""
        return self if self.weights is None else replace(self, weights=self.weights.to(device))

    def __call__(
        self, logits: Tensor, labels: Tensor, sample_weights: Tensor | None = None, mix: LabelMix | None = None
    ) -> Tensor:
        """logits: [n, classes]. labels: [n]. Returns a scalar. Others: as in `TaskCriterion`."""
        targets = self.targets(labels, logits.shape[1], mix)
        losses = binary_cross_entropy_with_logits(logits.float(), targets, reduction="none").mean(dim=1)
        if self.weights is not None:
            losses = losses * _mixed(self.weights[labels], None if mix is None else self.weights[mix.other], mix)
        return (losses if sample_weights is None else losses * sample_weights).mean()

    def targets(self, labels: Tensor, classes: int, mix: LabelMix | None) -> Tensor:
        """What each output should be, float32 [n, classes]."""
        other = None if mix is None else one_hot(mix.other, classes).float()
        mixed = _mixed(one_hot(labels, classes).float(), other, mix)
        smooth = mixed * (1 - self.label_smoothing) + self.label_smoothing / classes
        return smooth if self.threshold is None else (smooth > self.threshold).float()


def _mixed(own: Tensor, other: Tensor | None, mix: LabelMix | None) -> Tensor:
    """What belongs to the labels of mixed images, [n] or [n, classes]."""
    if mix is None or other is None:
        return own
    share = mix.share if own.dim() == 1 else mix.share[:, None]
    return own * share + other * (1 - share)


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiLabelCriterion:
    """The mean binary cross-entropy over samples and labels, in nats."""

    def to(self, device: torch.device) -> Self:
        """The criterion itself: it has no tensors."""
        return self

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of each sample, [n]. logits, labels: [n, classes]."""
        return binary_cross_entropy_with_logits(logits.float(), labels, reduction="none").mean(dim=1)

    def __call__(
        self, logits: Tensor, labels: Tensor, sample_weights: Tensor | None = None, mix: LabelMix | None = None
    ) -> Tensor:
        """logits, labels: [n, classes]. Returns a scalar. Others: as in `TaskCriterion`."""
        return mean_loss(partial(self.each, logits), labels, sample_weights, mix)


# optim.loss -> the distance. huber is squared up to one standard deviation, and linear beyond.
DISTANCES: Final[Mapping[str, Callable[..., Tensor]]] = {"l1": l1_loss, "l2": mse_loss, "huber": huber_loss}
DEFAULT_DISTANCE: Final = "l2"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegressionCriterion:
    """The mean distance between predictions and numbers, both in standard deviations of the training's numbers.

    distance: of `DISTANCES`.
    """

    distance: str
    target: TargetScale

    def to(self, device: torch.device) -> Self:
        """The criterion itself: it has no tensors."""
        return self

    def each(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of each sample, [n]. outputs: [n, 1]. labels: numbers [n]."""
        standardized = (labels - self.target.mean) / self.target.std
        return DISTANCES[self.distance](outputs.float().flatten(), standardized, reduction="none")

    def __call__(
        self, logits: Tensor, labels: Tensor, sample_weights: Tensor | None = None, mix: LabelMix | None = None
    ) -> Tensor:
        """logits: [n, 1]. labels: [n]. Returns a scalar. mix: None, as distances are not linear in the labels."""
        return mean_loss(partial(self.each, logits), labels, sample_weights, mix)


def build_task_criterion(optim: OptimConfig, splits: DataSplits) -> TaskCriterion:
    """The training loss of the data's task. Raises Failure: as the task's own function."""
    criterion: TaskCriterion = TASKS[splits.task].load("criterion")(optim, splits)
    return criterion


def build_classification_criterion(optim: OptimConfig, splits: DataSplits) -> Criterion | BinaryCriterion:
    """Cross-entropy, or with optim.loss: bce the binary one. Raises Failure: as `build_criterion`."""
    counts = statistics.class_counts(splits.training.labels, len(splits.classes)).tolist()
    if optim.loss != "bce":
        return build_criterion(optim, counts, splits.classes)
    return BinaryCriterion(
        label_smoothing=optim.label_smoothing,
        weights=class_weights(optim, counts, splits.classes),
        threshold=optim.target_threshold,
    )


def build_multi_label_criterion(optim: OptimConfig, splits: DataSplits) -> MultiLabelCriterion:
    return MultiLabelCriterion()


def build_regression_criterion(optim: OptimConfig, splits: DataSplits) -> RegressionCriterion:
    assert splits.target is not None  # whoever reads numbers computes their scale
    distance = DEFAULT_DISTANCE if optim.loss == "auto" else optim.loss
    return RegressionCriterion(distance=distance, target=splits.target)


def build_criterion(optim: OptimConfig, counts: Sequence[int], classes: Sequence[str] = ()) -> Criterion:
    """Build the criterion of a run. Arguments and Failure: as those of `class_weights`."""
    return Criterion(label_smoothing=optim.label_smoothing, weights=class_weights(optim, counts, classes))


def class_weights(optim: OptimConfig, counts: Sequence[int], classes: Sequence[str] = ()) -> Tensor | None:
    """One weight for each class, float32 [classes]; None if all are 1.

    They are 1 on average over the training samples.

    Args:
        counts: training samples of each class.
        classes: their names.

    Raises:
        Failure: USAGE for a list with another length, other names, or if no sample gets a weight; DATA for a class
            without samples.
    """
    if optim.class_weights == "none":
        return None
    if isinstance(optim.class_weights, str):
        raw = statistics.balanced_class_weights(counts)
    else:
        raw = statistics.weights_in_order(optim.class_weights, classes)
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
        found=f"weights {weights!s:.200}, training samples {counts!s:.200}",
        fix="give a weight above 0 to a class that has training samples",
        code=ExitCode.USAGE,
    )


def _wrong_length_failure(num_weights: int, num_classes: int) -> Failure:
    return Failure(
        "optim.class_weights has another length than there are classes",
        found=f"{num_weights} weights",
        expected=f"{num_classes} classes",
        fix=f"give {num_classes} numbers in the order of the classes or by their names, or write balanced",
        code=ExitCode.USAGE,
    )
