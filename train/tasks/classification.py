"""`Classification` is the task of one class for each image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, one_hot

from train.config.schema import OptimConfig
from train.data.mixing import LabelMix
from train.data.splits import as_targets
from train.data.statistics import ClassCounts, class_counts
from train.evaluation.mistakes import (
    MAX_HARD_CLASSES,
    MAX_HARD_IMAGES,
    MAX_MISTAKES,
    Calibration,
    CalibrationBin,
    Mistakes,
    Selection,
    find_largest,
)
from train.evaluation.scores import Columns, ConfusionCounter
from train.files import one_line
from train.tasks.base import (
    BoolArray,
    Cell,
    Float32Array,
    ImageResults,
    Int64Array,
    Prediction,
    Task,
    TaskCriterion,
    Threshold,
)
from train.tasks.class_balance import (
    ClassWeights,
    balanced_class_weights,
    class_weights,
    configured_weights,
    describe_class_weights,
    format_balance_table,
)
from train.tasks.table import CLASSIFICATION

MAX_EVEN_RATIO: Final = 1.5  # largest / smallest class; beyond it a table follows
NUM_BINS: Final = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCriterion(TaskCriterion):
    """A loss whose samples have the weights of their classes.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion(ClassCriterion):
    """The mean cross-entropy of a micro batch, in nats. logits: [n, classes]. labels: [n]."""

    def __call__(
        self, logits: Tensor, labels: Tensor, sample_weights: Tensor | None = None, mix: LabelMix | None = None
    ) -> Tensor:
        if self.weights is None and sample_weights is None and mix is None:
            return cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
        # No super(): dataclasses with slots are another class than the one that it would look for.
        return TaskCriterion.__call__(self, logits, labels, sample_weights, mix)

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        each = cross_entropy(logits, labels, label_smoothing=self.label_smoothing, reduction="none")
        return each if self.weights is None else each * self.weights[labels]


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryCriterion(ClassCriterion):
    """The mean binary cross-entropy over samples and classes, in nats: each class is its own question.

    Wightman et al.: ResNet strikes back (2021). threshold: targets above it are 1, and 0 otherwise, so that a mixed
    image has both labels; None: targets as they are mixed and smoothed. logits: [n, classes]. labels: [n].
    """

    threshold: float | None

    def each(self, logits: Tensor, labels: Tensor) -> Tensor:
        return self.losses(logits, labels, None)

    def losses(self, logits: Tensor, labels: Tensor, mix: LabelMix | None) -> Tensor:
        # The labels are mixed before the loss, not the losses after it: a threshold is not linear in them.
        targets = self.targets(labels, logits.shape[1], mix)
        losses = binary_cross_entropy_with_logits(logits.float(), targets, reduction="none").mean(dim=1)
        if self.weights is None:
            return losses
        return losses * _mixed(self.weights[labels], None if mix is None else self.weights[mix.other], mix)

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


def find_class_mistakes(
    classes: Sequence[str],
    labels: Int64Array,
    predictions: Int64Array,
    confidences: Float32Array,
    losses: Float32Array,
) -> Mistakes:
    """The most confident mistakes, and each class's images with the highest loss, of arrays [images]."""
    correct = labels == predictions
    mistakes, hardest = confident_mistakes(correct, confidences), hardest_images(labels, correct, losses)
    shown = len(np.unique(labels[hardest]))
    which = f"of the {shown} classes with the lowest recall" if shown < len(classes) else "class"
    titles = (
        f"The most confident mistakes, {len(mistakes)} of {np.count_nonzero(~correct):,}:",
        f"The images with the highest loss in each {which}:",
    )

    def cells(row: int) -> list[str]:
        names = [classes[int(labels[row])], classes[int(predictions[row])]]
        return [*names, f"{confidences[row]:.1%}", f"{losses[row]:.2f}"]

    return Mistakes(
        selections=tuple(
            Selection(
                title=title,
                head=("true", "predicted", "confidence", "loss"),
                rows=rows.tolist(),
                cells=[*map(cells, rows.tolist())],
            )
            for title, rows in zip(titles, (mistakes, hardest), strict=True)
        ),
        calibration=measure_calibration(confidences, correct),
    )


def confident_mistakes(correct: BoolArray, confidences: Float32Array) -> Int64Array:
    """The images whose prediction is wrong, the most confident one first."""
    return find_largest(np.where(correct, np.nan, confidences), MAX_MISTAKES)


def hardest_images(labels: Int64Array, correct: BoolArray, losses: Float32Array) -> Int64Array:
    """The images with the highest loss in each class. Of many classes those with the lowest recall, in their order."""
    present = np.unique(labels)
    recall = [float(correct[labels == label].mean()) for label in present]
    weakest = np.sort(present[np.argsort(recall, kind="stable")][:MAX_HARD_CLASSES])
    hardest = [find_largest(np.where(labels == label, losses, np.nan), MAX_HARD_IMAGES) for label in weakest]
    return np.concatenate([np.empty(0, np.int64), *hardest])


def measure_calibration(confidences: npt.NDArray[Any], correct: BoolArray) -> Calibration:
    """The expected calibration error and its bins, of equal width: (0, 1/15], (1/15, 2/15], ..., (14/15, 1].

    ECE = sum over the bins of (images / all images) * |accuracy - mean confidence|: C. Guo, G. Pleiss, Y. Sun,
    K. Q. Weinberger, "On Calibration of Modern Neural Networks", ICML 2017, equation 3, with their 15 bins.

    Args:
        confidences: the probability of each predicted class; images where it is not finite are left out.
        correct: whether each prediction is the label.
    """
    finite = np.isfinite(confidences)
    confidences, hits = confidences[finite].astype(np.float64), correct[finite].astype(np.float64)
    numbers = np.clip(np.ceil(confidences * NUM_BINS).astype(np.int64) - 1, 0, NUM_BINS - 1)
    counts = np.bincount(numbers, minlength=NUM_BINS)
    means = [
        np.divide(
            np.bincount(numbers, weights=each, minlength=NUM_BINS), counts, where=counts > 0, out=np.zeros(NUM_BINS)
        )
        for each in (confidences, hits)
    ]
    bins = [
        CalibrationBin(images=int(count), confidence=float(confidence), accuracy=float(accuracy))
        for count, confidence, accuracy in zip(counts, *means, strict=True)
    ]
    error = sum(each.images * abs(each.accuracy - each.confidence) for each in bins) / max(1, len(confidences))
    return Calibration(error=error, bins=tuple(bins))


class Classification(Task):
    """One class for each image. Labels: integers [n]. Outputs: a logit for each class, [n, classes]."""

    name = CLASSIFICATION
    averaged = ("accuracy",)

    def build_criterion(self, optim: OptimConfig, labels: Tensor) -> Criterion | BinaryCriterion:
        weights = class_weights(optim, class_counts(labels, len(self.classes)).tolist(), self.classes)
        if optim.loss != "bce":
            return Criterion(label_smoothing=optim.label_smoothing, weights=weights)
        return BinaryCriterion(label_smoothing=optim.label_smoothing, weights=weights, threshold=optim.target_threshold)

    def measure(self, outputs: Tensor, labels: Tensor, mix: LabelMix | None) -> tuple[Tensor, ...]:
        """The correct predictions. A mixed image counts with the share of the label that was predicted."""
        predicted = outputs.argmax(dim=1)
        if mix is None:
            return ((predicted == labels).sum(),)
        return (((predicted == labels) * mix.share + (predicted == mix.other) * (1 - mix.share)).sum(),)

    def choices_to_guess(self, optim: OptimConfig) -> int:
        return len(self.classes) if optim.loss == "auto" else 2  # else it is no cross-entropy over the classes

    def build_counter(self, device: torch.device, *, optim: OptimConfig, threshold: Threshold) -> ConfusionCounter:
        """What counts. It needs neither a threshold nor the training's loss, whose weights the metrics do not have."""
        return ConfusionCounter(len(self.classes), device)

    def measure_images(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
        logits = outputs.float()
        predictions = logits.argmax(dim=1)
        confidences = logits.softmax(dim=1).gather(1, predictions[:, None])[:, 0]
        return labels, predictions, confidences, cross_entropy(logits, labels, reduction="none")

    def image_results(self, samples: Int64Array, columns: Columns, thresholds: Sequence[float] | None) -> ImageResults:
        labels, predictions, confidences, losses = columns
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return ImageResults(
            samples=samples,
            head=("label", "prediction", "confidence", "loss"),
            cells=((self.classes[label], self.classes[guess], *numbers) for label, guess, *numbers in rows),
            find_mistakes=lambda _: find_class_mistakes(self.classes, labels, predictions, confidences, losses),
        )

    def predict(
        self,
        outputs: Tensor,
        paths: Sequence[Path],
        thresholds: tuple[float, ...] | None,
        *,
        top: int,
        all_classes: bool = False,
    ) -> list[Prediction | None]:
        """Of equal scores the first class wins, as in the evaluation."""
        probabilities = outputs.double().softmax(dim=1)
        order = outputs.sort(dim=1, descending=True, stable=True).indices[:, :top]
        finite = probabilities.isfinite().all(dim=1).tolist()
        of_all = probabilities.tolist() if all_classes else [()] * len(paths)
        rows = zip(paths, order.tolist(), probabilities.gather(1, order).tolist(), of_all, finite, strict=True)
        return [self._prediction(*row) if is_finite else None for *row, is_finite in rows]

    def _prediction(
        self, path: Path, likeliest: list[int], probabilities: list[float], of_all: Sequence[float]
    ) -> Prediction:
        """likeliest, probabilities: of the first classes. of_all: the probabilities of all classes, or none."""
        pairs = [(self.classes[index], share) for index, share in zip(likeliest, probabilities, strict=True)]
        cells = dict[str, Cell]()
        for number, (name, probability) in enumerate(pairs, start=1):
            suffix = f" {number}" if number > 1 else ""
            cells |= {f"prediction{suffix}": name, f"confidence{suffix}": probability}
        cells |= {f"probability of {name}": share for name, share in zip(self.classes, of_all, strict=False)}
        top = [{"class": name, "probability": probability} for name, probability in pairs]
        return Prediction(
            path=path,
            texts=[f"{one_line(name)}\t{probability:.4f}" for name, probability in pairs],
            strongest=f"{pairs[0][0]} {pairs[0][1]:.1%}",
            cells=cells,
            values={**top[0], "top": top},
        )

    def count_images(self, labels: Tensor) -> dict[str, int]:
        return dict(zip(self.classes, class_counts(labels, len(self.classes)).tolist(), strict=True))

    def map_labels(self, labels: Tensor, indices: Tensor, outputs: int) -> Tensor:
        return indices[as_targets(labels)]

    def describe_balance(self, training: Tensor, validation: Tensor, class_weights: ClassWeights) -> list[str]:
        """One line if the classes have similar sizes, else also a short table, the largest class first."""
        counts = [class_counts(labels, len(self.classes)) for labels in (training, validation)]
        least, most = int(counts[0].min()), int(counts[0].max())
        first = f"{'classes':<14} {_format_range(counts[0])} samples of each for training"
        if len(validation):
            first += f", {_format_range(counts[1])} for validation"
        if most <= MAX_EVEN_RATIO * least:
            listed = describe_class_weights(class_weights, self.classes)
            return [first] if listed is None else [first, f"{'class weights':<14} {listed}"]
        weights = configured_weights(class_weights, self.classes)
        if isinstance(class_weights, str) and least:
            weights = balanced_class_weights(counts[0])
        empty, imbalance = "some classes have no training sample", "the largest is {:.3g} times the smallest"
        first += f"; {imbalance.format(most / least) if least else empty}"
        samples = counts[0].tolist(), counts[1].tolist()
        return [first, *format_balance_table(self.classes, *samples, weights, class_weights)]


def _format_range(counts: ClassCounts) -> str:
    least, most = int(counts.min()), int(counts.max())
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"
