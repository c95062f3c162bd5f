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

from train.data.batch import Batch
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
from train.evaluation.results import EvaluationResult
from train.evaluation.totals import Measured, Model, Rows, Totals
from train.files import one_line
from train.metrics import TOP_K, Counts, recall_by_class
from train.tasks.base import (
    BoolArray,
    Cell,
    Float32Array,
    ImageResults,
    Int64Array,
    Prediction,
    Task,
    Threshold,
    mixed,
)
from train.tasks.class_balance import (
    ClassWeights,
    balanced_class_weights,
    class_weights,
    configured_weights,
    describe_class_weights,
    format_balance_table,
)
from train.tasks.table import AUTO, CLASSIFICATION

MAX_EVEN_RATIO: Final = 1.5  # largest / smallest class; beyond it a table follows
NUM_BINS: Final = 15
MAX_CONFUSION_CLASSES: Final = 1000  # up to which recall and the confusion matrix are kept: 8 MB of counts
COLUMNS: Final = ("label", "prediction", "confidence", "loss")  # of the results per image


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification(Task):
    """One class for each image. Labels: integers [n]. Outputs: a logit for each class, [n, classes].

    The loss is the cross-entropy in nats, of the classes together or (optim.loss: bce) of each class as its own
    question: Wightman et al., ResNet strikes back (2021).

    A sample's whole loss, with the smoothed part, is multiplied by the weight of its class, as if the sample were drawn
    so often. torch weights each class's share of the smoothed label instead: the two differ with label_smoothing. The
    weighted sum is divided by the number of samples. torch's weighted mean divides it by the sum of the weights in the
    micro batch, so its gradients would change with the number of ranks.
    """

    name = CLASSIFICATION
    averaged = ("accuracy",)
    class_weights: Tensor | None = None  # float32 [classes], 1 on average over the training samples

    def for_training(self, labels: Tensor, device: torch.device) -> Self:
        weights = class_weights(self.optim, class_counts(labels, len(self.classes)).tolist(), self.classes)
        # No super(): dataclasses with slots are another class than the one that it would look for.
        task = Task.for_training(self, labels, device)
        return task if weights is None else replace(task, class_weights=weights.to(device))

    def mean_loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        if self.class_weights is None and self.optim.loss == AUTO and not batch.keys() & {"weight", "share"}:
            return cross_entropy(outputs, batch["label"], label_smoothing=self.optim.label_smoothing)
        return Task.mean_loss(self, outputs, batch)

    def batch_losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        if self.optim.loss != "bce":
            return Task.batch_losses(self, outputs, batch)
        # The labels are mixed before the loss, not the losses after it: a threshold is not linear in them.
        targets = self.binary_targets(batch, outputs.shape[1])
        losses = binary_cross_entropy_with_logits(outputs.float(), targets, reduction="none").mean(dim=1)
        return losses if self.class_weights is None else losses * mixed(batch, self.class_weights.__getitem__)

    def binary_targets(self, batch: Batch, classes: int) -> Tensor:
        """What each output should be, float32 [n, classes].

        optim.target_threshold: targets above it are 1, and 0 otherwise, so that a mixed image has both labels.
        """
        smoothing, threshold = self.optim.label_smoothing, self.optim.target_threshold
        targets = mixed(batch, lambda labels: one_hot(labels, classes).float())
        smooth = targets * (1 - smoothing) + smoothing / classes
        return smooth if threshold is None else (smooth > threshold).float()

    def training_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        losses = Task.training_losses(self, outputs, labels)
        return losses if self.class_weights is None else losses * self.class_weights[labels]

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(outputs, labels, label_smoothing=self.optim.label_smoothing, reduction="none")

    def collate(self, images: Any, labels: Tensor) -> Batch:
        """The losses take classes as int64; a source keeps them in whatever width they need."""
        return Task.collate(self, images, labels.long())

    def sum_values(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The correct predictions. A mixed image counts with the share of the label that was predicted."""
        return {"accuracy": mixed(batch, outputs.argmax(dim=1).eq).sum()}

    @property
    def choices_to_guess(self) -> int:
        return len(self.classes) if self.optim.loss == AUTO else 2  # else it is no cross-entropy over the classes

    def measure(self, model: Model, batch: Batch, *, details: bool) -> Measured:
        """Counts of each class. The loss has neither the weights of the training's nor its smoothing."""
        logits, labels, classes = self.compute_outputs(model, batch), batch["label"], len(self.classes)
        predictions, ones = logits.argmax(dim=1), torch.ones_like(labels)
        losses, zeros = cross_entropy(logits, labels, reduction="none"), labels.new_zeros(classes)
        counts = {
            "correct": zeros.index_add(0, labels, (predictions == labels).long()),
            "predicted": zeros.index_add(0, predictions, ones),
            "support": zeros.index_add(0, labels, ones),
            "top5_correct": (logits.topk(min(TOP_K, classes)).indices == labels[:, None]).sum(),
        }
        if classes <= MAX_CONFUSION_CLASSES:
            cells = labels.new_zeros(classes * classes).index_add_(0, labels * classes + predictions, ones)
            counts["confusion"] = cells.view(classes, classes)
        rows = dict[str, Tensor]()
        if details:
            confidences = logits.softmax(dim=1).gather(1, predictions[:, None])[:, 0]
            rows = dict(zip(COLUMNS, (labels, predictions, confidences, losses), strict=True))
        return Measured(loss=losses.double().sum(), counts=counts, rows=rows)

    def metrics(self, totals: Totals, threshold: Threshold) -> tuple[EvaluationResult, Tensor | None]:
        summed: dict[str, Any] = {name: count.tolist() for name, count in totals.counts.items() if name != "confusion"}
        counts = Counts(samples=totals.samples, loss=totals.loss, **summed)
        recall = recall_by_class(counts) if len(self.classes) <= MAX_CONFUSION_CLASSES else None
        return EvaluationResult.of_counts(self.name, counts, recall=recall), totals.counts.get("confusion")

    def image_results(self, rows: Rows, thresholds: Sequence[float] | None) -> ImageResults:
        labels, predictions, confidences, losses = columns = [rows[name] for name in COLUMNS]
        cells = zip(*(column.tolist() for column in columns), strict=True)
        return ImageResults(
            samples=rows["sample"],
            head=COLUMNS,
            cells=((self.classes[label], self.classes[guess], *numbers) for label, guess, *numbers in cells),
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
        return indices[labels.long()]

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
