"""`MultiLabel` is the task of any number of labels for each image."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from train.data.batch import Batch
from train.evaluation.mistakes import (
    MAX_HARD_CLASSES,
    MAX_HARD_IMAGES,
    MAX_MISTAKES,
    LabelScore,
    Mistakes,
    Selection,
    find_largest,
)
from train.evaluation.results import EvaluationResult
from train.evaluation.totals import Measured, Model, Rows, Totals
from train.files import one_line
from train.metrics import Counts
from train.tasks.base import (
    BoolArray,
    Float64Array,
    ImageResults,
    Prediction,
    Task,
    Threshold,
)
from train.tasks.class_balance import ClassWeights, format_balance_table
from train.tasks.table import MULTI_LABEL

LABEL_SEPARATOR: Final = "|"  # between the labels of one image, which a table of labels may have too
MAX_SCORED_LABELS: Final = 1000  # as many as classes have a confusion matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelResults:
    """The labels of each image, [images, labels] each.

    probabilities: NaN where an output is not finite. label_losses: binary cross-entropy in nats. predicted: whether the
    probability is at least the label's threshold.
    """

    classes: Sequence[str]
    labels: BoolArray
    predicted: BoolArray
    probabilities: Float64Array
    label_losses: Float64Array

    @property
    def losses(self) -> Float64Array:
        """The loss of each image: the mean over its labels, as in the training."""
        means: Float64Array = self.label_losses.mean(axis=1)
        return means

    def names(self, row: int, separator: str) -> list[str]:
        """The labels that an image has, and those that the model gives it: dark|striped."""
        return [
            separator.join(self.classes[index] for index in np.flatnonzero(each[row]).tolist())
            for each in (self.labels, self.predicted)
        ]

    def find_mistakes(self, result: EvaluationResult) -> Mistakes:
        """The images with the highest loss, and each label's worst: where it is missed, or given without reason."""
        losses, by_label = self.losses, self.worst_of_each_label(result.average_precision or ())
        worst = find_largest(losses, MAX_MISTAKES).tolist()
        which = f"of the {len(by_label)} labels with the lowest average precision"
        by_image = Selection(
            title="The images with the highest loss:",
            head=("true", "predicted", "loss"),
            rows=worst,
            cells=[[*self._shown_names(row), f"{losses[row]:.2f}"] for row in worst],
        )
        pairs = [(label, row) for label, rows in by_label.items() for row in rows]
        each = Selection(
            title=f"The worst images of each {which if len(by_label) < len(self.classes) else 'label'}:",
            head=("label", "image has it", "probability", "true", "predicted"),
            rows=[row for _, row in pairs],
            cells=[
                [
                    self.classes[label],
                    "yes" if self.labels[row, label] else "no",
                    f"{self.probabilities[row, label]:.1%}",
                    *self._shown_names(row),
                ]
                for label, row in pairs
            ],
            outputs=[label for label, _ in pairs],
        )
        return Mistakes(selections=(by_image, each), labels=self._label_scores(result))

    def worst_of_each_label(self, average_precision: Sequence[float | None]) -> dict[int, Sequence[int]]:
        """Images with the highest loss of each label; of many labels those with the lowest average precision."""
        measured = [(precision, label) for label, precision in enumerate(average_precision) if precision is not None]
        weakest = sorted(label for _, label in sorted(measured)[:MAX_HARD_CLASSES])
        return {label: find_largest(self.label_losses[:, label], MAX_HARD_IMAGES).tolist() for label in weakest}

    def _shown_names(self, row: int) -> list[str]:
        return [names or "none" for names in self.names(row, ", ")]

    def _label_scores(self, result: EvaluationResult) -> tuple[LabelScore, ...]:
        """The counts of each label; none for very many labels."""
        if len(self.classes) > MAX_SCORED_LABELS or result.average_precision is None or result.thresholds is None:
            return ()
        counts = (self.labels, self.predicted, self.labels & self.predicted)
        images, predicted, correct = (each.sum(axis=0).tolist() for each in counts)
        rows: Iterable[tuple[str, int, int, int, float | None, float]] = zip(
            self.classes, images, predicted, correct, result.average_precision, result.thresholds, strict=True
        )
        return tuple(
            LabelScore(
                name=name,
                images=num_images,
                predicted=num_predicted,
                correct=num_correct,
                average_precision=precision,
                threshold=threshold,
            )
            for name, num_images, num_predicted, num_correct, precision, threshold in rows
        )


class MultiLabel(Task):
    """Any number of labels for each image. Labels: 0 or 1, float32 [n, classes]. Outputs: their logits.

    The loss of a sample is the mean binary cross-entropy over its labels, in nats.
    """

    name = MULTI_LABEL
    averaged = ("label_accuracy",)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(outputs.float(), labels, reduction="none").mean(dim=1)

    def example_labels(self, samples: int) -> Tensor:
        return torch.zeros(samples, len(self.classes))

    def sum_values(self, outputs: Tensor, batch: Batch) -> dict[str, Tensor]:
        """The share of each sample's labels that are predicted as they are (probability 0.5)."""
        return {"label_accuracy": ((outputs > 0) == (batch["label"] > 0.5)).double().mean(dim=1).sum()}

    def measure(self, model: Model, batch: Batch, *, details: bool) -> Measured:
        outputs, labels = self.compute_outputs(model, batch), batch["label"]
        rows = {"label": labels > 0.5, "output": outputs}
        return Measured(loss=self.losses(outputs, labels).double().sum(), rows=rows)

    def metrics(self, totals: Totals, threshold: Threshold) -> tuple[EvaluationResult, Tensor | None]:
        """Average precision and F1 of each label over all samples.

        threshold: of the probability, of all labels or of each; auto: for each label the one with the best F1 on these
        samples.
        """
        probabilities = probabilities_of(torch.from_numpy(totals.rows["output"])).numpy()
        is_positive = totals.rows["label"]
        columns = [(probabilities[:, label], is_positive[:, label]) for label in range(len(self.classes))]
        precision = tuple(average_precision(*column) for column in columns)
        if threshold == "auto":
            thresholds = tuple(best_threshold(*column) for column in columns)
        elif isinstance(threshold, float | int):
            thresholds = (float(threshold),) * len(columns)
        else:
            thresholds = tuple(threshold)
        predicted = probabilities >= np.array(thresholds)
        counts = Counts(
            samples=totals.samples,
            loss=totals.loss,
            top5_correct=math.nan,
            correct=(predicted & is_positive).sum(axis=0).tolist(),
            predicted=predicted.sum(axis=0).tolist(),
            support=is_positive.sum(axis=0).tolist(),
            average_precision=precision,
        )
        result = EvaluationResult.of_counts(self.name, counts, average_precision=precision, thresholds=thresholds)
        return result, None

    def image_results(self, rows: Rows, thresholds: Sequence[float] | None) -> ImageResults:
        results = self.label_results(rows, thresholds)
        losses = enumerate(results.losses.tolist())
        return ImageResults(
            samples=rows["sample"],
            head=("labels", "predictions", "loss"),
            cells=((*results.names(row, LABEL_SEPARATOR), loss) for row, loss in losses),
            find_mistakes=results.find_mistakes,
        )

    def label_results(self, rows: Rows, thresholds: Sequence[float] | None) -> LabelResults:
        """Arguments: as those of `image_results`."""
        labels, logits = torch.from_numpy(rows["label"]), torch.from_numpy(rows["output"])
        probabilities = probabilities_of(logits).numpy()
        losses = binary_cross_entropy_with_logits(logits.double(), labels.double(), reduction="none")
        return LabelResults(
            classes=self.classes,
            labels=labels.numpy(),
            predicted=probabilities >= np.array(thresholds),
            probabilities=probabilities,
            label_losses=losses.numpy(),
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
        assert thresholds is not None  # `inputs.build_input_spec` sets them for this task
        finite = outputs.isfinite().all(dim=1).tolist()
        rows = zip(paths, probabilities_of(outputs).tolist(), finite, strict=True)
        return [self._prediction(path, row, thresholds) if is_finite else None for path, row, is_finite in rows]

    def _prediction(self, path: Path, probabilities: list[float], thresholds: Sequence[float]) -> Prediction:
        """The image has the labels whose probability is at least their threshold, named in falling order."""
        pairs = [*zip(self.classes, probabilities, strict=True)]
        likely = [pair for pair, threshold in zip(pairs, thresholds, strict=True) if pair[1] >= threshold]
        likely.sort(key=lambda pair: -pair[1])
        labels, (name, probability) = [name for name, _ in likely], max(pairs, key=lambda pair: pair[1])
        by_label = {f"probability of {name}": probability for name, probability in pairs}
        return Prediction(
            path=path,
            texts=[f"{one_line(name)}\t{probability:.4f}" for name, probability in likely],
            strongest=f"{name} {probability:.1%}",  # also below its threshold
            cells={"labels": LABEL_SEPARATOR.join(labels), **by_label},
            values={"labels": labels, "probabilities": dict(pairs)},
        )

    def count_images(self, labels: Tensor) -> dict[str, int]:
        return {name: int(count) for name, count in zip(self.classes, labels.sum(dim=0).tolist(), strict=True)}

    def map_labels(self, labels: Tensor, indices: Tensor, outputs: int) -> Tensor:
        mapped = labels.new_zeros((len(labels), outputs))
        mapped[:, indices] = labels
        return mapped

    def describe_balance(self, training: Tensor, validation: Tensor, class_weights: ClassWeights) -> list[str]:
        """A table of how many samples have each label, the most frequent first."""
        counts = (labels.sum(dim=0).long().tolist() for labels in (training, validation))
        none = int((training.sum(dim=1) == 0).sum())
        first = f"{'labels':<14} {training.sum(dim=1).mean().item():.3g} for each training image, none for {none:,}"
        return [first, *format_balance_table(self.classes, *counts)]


def probabilities_of(logits: Tensor) -> Tensor:
    """The probability of each label, float64 [n, labels] on the CPU."""
    return logits.double().sigmoid()


def average_precision(scores: Float64Array, is_positive: BoolArray) -> float | None:
    """The sum over thresholds of precision x gain in recall: scikit-learn's average_precision_score.

    Samples with equal scores are one threshold, so their order does not matter. None without a positive sample.
    """
    if not is_positive.any():
        return None
    correct, predicted, _ = _counts_by_threshold(scores, is_positive)
    gains = np.diff(correct, prepend=0) / is_positive.sum()
    return math.fsum(gains * correct / predicted)


def best_threshold(scores: Float64Array, is_positive: BoolArray) -> float:
    """The threshold with the best F1, in the middle between two scores; 0.5 without a positive sample."""
    if not is_positive.any():
        return 0.5
    correct, predicted, values = _counts_by_threshold(scores, is_positive)
    best = int(np.argmax(2 * correct / (predicted + is_positive.sum())))
    below = values[best + 1] if best + 1 < len(values) else 0.0
    return float((values[best] + below) / 2)


def _counts_by_threshold(
    scores: Float64Array, is_positive: BoolArray
) -> tuple[Float64Array, Float64Array, Float64Array]:
    """For each distinct score, the highest first: positive samples and samples that reach it, and the score."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    ends = np.append(np.flatnonzero(np.diff(ordered)), len(ordered) - 1)
    return np.cumsum(is_positive[order])[ends].astype(np.float64), ends + 1.0, ordered[ends]
