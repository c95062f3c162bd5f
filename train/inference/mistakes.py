"""Finds what went wrong in an evaluation: the images that are worth a look, and the values of a diagram.

`train.tasks` names the function of each task. The number of images is bounded, so that a report stays small for any
data set.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from entrypoint import Failure
from train.data.splits import SampleSource
from train.evaluation.results import EvaluationResult
from train.inference import explanation
from train.inference.explanation import displayable
from train.inference.per_image import ClassResults, Int64Array, LabelResults, NumberResults, join_labels
from train.report.saved_evaluation import (
    Calibration,
    CalibrationBin,
    GalleryImage,
    LabelScore,
    NumberPairs,
    SavedGallery,
)

MAX_MISTAKES: Final = 24
MAX_HARD_CLASSES: Final = 10
MAX_HARD_IMAGES: Final = 3  # of each class
MAX_SCORED_LABELS: Final = 1000  # as many as classes have a confusion matrix
MAX_POINTS: Final = 2000  # of a diagram


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Images that are shown together. rows: of the results. cells: of each row, a text for each column of `head`.

    outputs: of each row, the output of the model that a heat map explains; None: the highest one.
    """

    title: str
    head: tuple[str, ...]
    rows: Sequence[int]
    cells: Sequence[Sequence[str]]
    outputs: Sequence[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistakes:
    """What the report shows of an evaluation. Of the others, those that the task has."""

    selections: tuple[Selection, ...]
    calibration: Calibration | None = None
    labels: tuple[LabelScore, ...] = ()
    numbers: NumberPairs | None = None


def find_class_mistakes(results: ClassResults, classes: Sequence[str], result: EvaluationResult) -> Mistakes:
    """The most confident mistakes, and each class's images with the highest loss."""
    mistakes, hardest = confident_mistakes(results), hardest_images(results)
    shown = len(np.unique(results.labels[hardest]))
    which = f"of the {shown} classes with the lowest recall" if shown < len(classes) else "class"
    titles = (
        f"The most confident mistakes, {len(mistakes)} of {np.count_nonzero(~results.correct):,}:",
        f"The images with the highest loss in each {which}:",
    )
    return Mistakes(
        selections=tuple(
            Selection(
                title=title,
                head=("true", "predicted", "confidence", "loss"),
                rows=rows.tolist(),
                cells=[_class_cells(results, classes, row) for row in rows.tolist()],
            )
            for title, rows in zip(titles, (mistakes, hardest), strict=True)
        ),
        calibration=measure_calibration(results.confidences, results.correct),
    )


def _class_cells(results: ClassResults, classes: Sequence[str], row: int) -> list[str]:
    label, prediction = classes[int(results.labels[row])], classes[int(results.predictions[row])]
    return [label, prediction, f"{results.confidences[row]:.1%}", f"{results.losses[row]:.2f}"]


def confident_mistakes(results: ClassResults) -> Int64Array:
    """The rows of `results` whose prediction is wrong, the most confident one first."""
    wrong = np.flatnonzero(~results.correct & np.isfinite(results.confidences))
    return wrong[np.argsort(-results.confidences[wrong], kind="stable")][:MAX_MISTAKES]


def hardest_images(results: ClassResults) -> Int64Array:
    """The rows with the highest loss in each class. Of many classes those with the lowest recall, in their order."""
    labels = np.unique(results.labels)
    recall = [float(results.correct[results.labels == label].mean()) for label in labels]
    weakest = np.sort(labels[np.argsort(recall, kind="stable")][:MAX_HARD_CLASSES])
    rows = [np.flatnonzero((results.labels == label) & np.isfinite(results.losses)) for label in weakest]
    hardest = [of_class[np.argsort(-results.losses[of_class], kind="stable")][:MAX_HARD_IMAGES] for of_class in rows]
    return np.concatenate([np.empty(0, np.int64), *hardest])


def find_label_mistakes(results: LabelResults, classes: Sequence[str], result: EvaluationResult) -> Mistakes:
    """The images with the highest loss, and each label's worst ones: where it is missed, or given without reason."""
    losses, by_label = results.losses, worst_of_each_label(results, result.average_precision or ())
    finite = np.flatnonzero(np.isfinite(losses))
    worst = finite[np.argsort(-losses[finite], kind="stable")][:MAX_MISTAKES].tolist()
    which = f"of the {len(by_label)} labels with the lowest average precision"
    by_image = Selection(
        title="The images with the highest loss:",
        head=("true", "predicted", "loss"),
        rows=worst,
        cells=[[*_label_names(results, classes, row), f"{losses[row]:.2f}"] for row in worst],
    )
    pairs = [(label, row) for label, rows in by_label.items() for row in rows]
    each = Selection(
        title=f"The worst images of each {which if len(by_label) < len(classes) else 'label'}:",
        head=("label", "image has it", "probability", "true", "predicted"),
        rows=[row for _, row in pairs],
        cells=[
            [
                classes[label],
                "yes" if results.labels[row, label] else "no",
                f"{results.probabilities[row, label]:.1%}",
                *_label_names(results, classes, row),
            ]
            for label, row in pairs
        ],
        outputs=[label for label, _ in pairs],
    )
    return Mistakes(selections=(by_image, each), labels=_label_scores(results, classes, result))


def worst_of_each_label(results: LabelResults, average_precision: Sequence[float | None]) -> dict[int, Sequence[int]]:
    """Rows with the highest loss of each label; of many labels those with the lowest average precision."""
    measured = [(precision, label) for label, precision in enumerate(average_precision) if precision is not None]
    weakest = sorted(label for _, label in sorted(measured)[:MAX_HARD_CLASSES])
    worst: dict[int, Sequence[int]] = {}
    for label in weakest:
        losses = results.label_losses[:, label]
        finite = np.flatnonzero(np.isfinite(losses))
        worst[label] = finite[np.argsort(-losses[finite], kind="stable")][:MAX_HARD_IMAGES].tolist()
    return worst


def _label_names(results: LabelResults, classes: Sequence[str], row: int) -> list[str]:
    """The labels of an image, and those that the model gives it."""
    return [join_labels(each[row], classes, ", ") or "none" for each in (results.labels, results.predicted)]


def _label_scores(results: LabelResults, classes: Sequence[str], result: EvaluationResult) -> tuple[LabelScore, ...]:
    """The counts of each label; none for very many labels."""
    if len(classes) > MAX_SCORED_LABELS or result.average_precision is None or result.thresholds is None:
        return ()
    counts = (results.labels, results.predicted, results.labels & results.predicted)
    images, predicted, correct = (each.sum(axis=0).tolist() for each in counts)
    rows: Iterable[tuple[str, int, int, int, float | None, float]] = zip(
        classes, images, predicted, correct, result.average_precision, result.thresholds, strict=True
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


def find_number_mistakes(results: NumberResults, classes: Sequence[str], result: EvaluationResult) -> Mistakes:
    """The largest errors, and the pairs of true and predicted numbers."""
    errors, finite = results.errors, np.flatnonzero(np.isfinite(results.errors))
    largest = finite[np.argsort(-np.abs(errors[finite]), kind="stable")][:MAX_MISTAKES].tolist()
    selection = Selection(
        title="The largest errors:",
        head=("true", "predicted", "error"),
        rows=largest,
        cells=[
            [f"{results.numbers[row]:.4g}", f"{results.predictions[row]:.4g}", f"{errors[row]:+.4g}"] for row in largest
        ],
    )
    shown = evenly(finite, MAX_POINTS)
    pairs = NumberPairs(
        name=classes[0],
        images=len(finite),
        mean_error=float(errors[finite].mean()) if len(finite) else 0.0,
        true=tuple(results.numbers[shown].tolist()),
        predicted=tuple(results.predictions[shown].tolist()),
    )
    return Mistakes(selections=(selection,), numbers=pairs)


def evenly(rows: Int64Array, most: int) -> Int64Array:
    """At most so many of the rows, at even distances."""
    return rows if len(rows) <= most else rows[np.arange(most) * len(rows) // most]


NUM_BINS: Final = 15


def measure_calibration(confidences: npt.NDArray[Any], correct: npt.NDArray[np.bool_]) -> Calibration:
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


MAX_SIDE: Final = 128  # pixels of a thumbnail
JPEG_QUALITY: Final = 90


# Stored samples [n, *size, channels], and the output that is explained of each or None -> heat maps [n, *size].
Explain = Callable[[Tensor, Sequence[int] | None], Tensor]


def make_gallery(
    selection: Selection,
    samples: Int64Array,
    source: SampleSource,
    root: str,
    explain: Explain | None = None,
) -> SavedGallery:
    """The images of a selection. One that cannot be read any more is left out.

    samples: of each row of the evaluation's results. root: left out of the images' paths. explain: adds a heat map.
    """
    images = []
    for number, (row, cells) in enumerate(zip(selection.rows, selection.cells, strict=True)):
        sample = int(samples[row])
        try:
            pixels = source.read(np.array([sample]))
        except Failure:
            continue
        name = source.names(np.array([sample]))[0].removeprefix(f"{root.rstrip('/')}/")
        shown, heat = displayable(pixels[0]), None
        if explain is not None:
            outputs = None if selection.outputs is None else [selection.outputs[number]]
            heat = encode_thumbnail(explanation.blend(shown, explain(pixels, outputs)[0].numpy()))
        images.append(GalleryImage(name=name, cells=tuple(cells), jpeg=encode_thumbnail(shown), heat=heat))
    return SavedGallery(title=selection.title, head=selection.head, images=tuple(images))


def thumbnail(pixels: Tensor) -> bytes:
    """A JPEG of at most MAX_SIDE pixels. pixels: one sample [*frames, height, width, channels] of any dtype."""
    return encode_thumbnail(displayable(pixels))


def encode_thumbnail(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A JPEG of at most MAX_SIDE pixels. pixels: [height, width] or [height, width, 3]."""
    image = Image.fromarray(pixels)
    image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return out.getvalue()
