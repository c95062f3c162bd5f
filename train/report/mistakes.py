"""Builds the section of a report that shows what went wrong: diagrams, mistakes and hard images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from train.metrics import NOT_MEASURED, metrics_of
from train.report import plots, read, saved_evaluation
from train.report.document import Block, DescriptionList, Gallery, Paragraph, Picture, Section, Table, Thumbnail
from train.report.read import ConfusionMatrix, RecordedRun
from train.report.saved_evaluation import Calibration, LabelScore, NumberPairs, SavedEvaluation, SavedGallery
from train.run.record import EVALUATION_FILE

MISTAKES_TITLE: Final = "What went wrong"
ECE_TEXT: Final = (
    "A line is the accuracy of the images with that confidence, and the gap its distance from their mean confidence. "
    "Where the gap lies above the line, the model is too sure. The expected calibration error (ECE) is the mean gap "
    "over all images, in 15 bins of equal width (Guo et al., On Calibration of Modern Neural Networks, 2017)."
)
HEAT_TEXT: Final = (
    "Below each image, the same under a heat map (Grad-CAM): what speaks for the predicted class, for the label in "
    "question, or for a high number. Bright is strong evidence, no colour is none; each map has its own scale."
)
NUMBERS_TEXT: Final = (
    "On the dotted lines the prediction is right. A residual above its line is predicted too high. Residuals that fall "
    "from left to right are predictions too near to the mean."
)


def mistakes_section(run: RecordedRun) -> Section | None:
    """Diagrams and galleries of the evaluation that `train eval RUN --report` kept; None without one."""
    saved = saved_evaluation.read(run.folder / EVALUATION_FILE)
    if saved is None:
        return None
    blocks: list[Block] = [*_cautions(run, saved), DescriptionList(rows=_facts(saved))]
    matrix = _class_matrix(run, saved)
    if matrix is not None:
        blocks.append(plots.class_table(matrix))
    if saved.labels:
        blocks.append(label_table(saved.labels))
    if saved.calibration is not None and saved.samples:
        png = plots.draw_calibration(saved.calibration)
        alt = f"Reliability diagram, expected calibration error {saved.calibration.error:.3f}"
        blocks += [Picture(name="calibration", png=png, alt=alt), Paragraph(text=ECE_TEXT)]
    if saved.numbers is not None and saved.numbers.true:
        blocks += _number_pictures(saved.numbers)
    if any(image.heat for gallery in saved.galleries for image in gallery.images):
        blocks.append(Paragraph(text=HEAT_TEXT))
    for gallery in saved.galleries:
        if gallery.images:
            blocks += [Paragraph(text=gallery.title), _gallery(gallery)]
    return Section(title=MISTAKES_TITLE, blocks=blocks)


def label_table(labels: Sequence[LabelScore]) -> Table:
    """Counts, recall, precision, F1 and average precision by label; of many those with the lowest average precision."""
    head, shown = "label", list(labels)
    if len(labels) > plots.MAX_LISTED_CLASSES:
        head = f"label (the {plots.MAX_LISTED_CLASSES} with the lowest average precision)"
        measured = [label for label in labels if label.average_precision is not None]
        shown = sorted(measured, key=lambda label: label.average_precision or 0.0)[: plots.MAX_LISTED_CLASSES]
    rows = [
        [
            label.name,
            *(f"{count:,}" for count in (label.images, label.predicted, label.correct)),
            plots.format_ratio(label.correct, label.images),
            plots.format_ratio(label.correct, label.predicted),
            plots.format_ratio(2 * label.correct, label.images + label.predicted),
            "-" if label.average_precision is None else f"{label.average_precision:.1%}",
            f"{label.threshold:.3g}",
        ]
        for label in shown
    ]
    columns = ["images", "predicted", "correct", "recall", "precision", "F1", "average precision", "threshold"]
    return Table(head=[head, *columns], rows=rows)


def _number_pictures(numbers: NumberPairs) -> list[Block]:
    """Predicted numbers over true ones, and the errors over the true ones."""
    shown = len(numbers.true)
    which = "" if shown == numbers.images else f" {shown:,} of {numbers.images:,} images are drawn."
    return [
        Picture(
            name="numbers", png=plots.draw_predicted_numbers(numbers), alt=f"Predicted {numbers.name} over the true one"
        ),
        Picture(name="residuals", png=plots.draw_residuals(numbers), alt=f"Errors of {numbers.name} over the true one"),
        Paragraph(text=NUMBERS_TEXT + which),
    ]


def _cautions(run: RecordedRun, saved: SavedEvaluation) -> list[Paragraph]:
    """What limits the conclusions: the evaluation's own notes, and a better checkpoint since."""
    cautions = [Paragraph(text=f"{note[:1].upper()}{note[1:]}.", caution=True) for note in saved.notes]
    best = read.best_evaluation(run)
    was_best = saved.standing is not None and saved.standing.startswith("the best")
    if was_best and best is not None and best[1] != saved.step:
        text = f"The evaluation of step {best[1]:,.0f} is better by now: run `train eval RUN --report` again."
        cautions.append(Paragraph(text=text, caution=True))
    return cautions


def _facts(saved: SavedEvaluation) -> dict[str, str]:
    standing = f" ({saved.standing} when it was measured)" if saved.standing else ""
    outputs = max(len(saved.classes), 2)  # numbers have one
    shown = [metric for metric in metrics_of(saved.task).values() if outputs >= metric.min_classes]
    scores = {metric.label: metric.format(saved.values.get(metric.name)) for metric in shown}
    facts = {
        "measured": saved.measured,
        "weights": f"of step {saved.step:,}{standing}, {saved.weights}",
        **{label: value for label, value in scores.items() if value != NOT_MEASURED},
    }
    if saved.calibration is not None:
        error = saved.calibration.error
        facts["calibration error"] = f"{error:.4f} (ECE)" if math.isfinite(error) else NOT_MEASURED
        facts["mean confidence"] = f"{mean_confidence(saved.calibration):.2%}"
    if saved.numbers is not None:
        facts["mean error"] = f"{saved.numbers.mean_error:+.4g} (prediction - true)"
    return facts


def mean_confidence(calibration: Calibration) -> float:
    """The mean confidence of all images; 0 without any."""
    images = sum(each.images for each in calibration.bins)
    return sum(each.images * each.confidence for each in calibration.bins) / max(1, images)


def _class_matrix(run: RecordedRun, saved: SavedEvaluation) -> ConfusionMatrix | None:
    """The confusion matrix, if the report does not show the same one already."""
    if saved.confusion is None or not any(map(sum, saved.confusion)):
        return None
    matrix = ConfusionMatrix(
        step=saved.step, classes=saved.classes, matrix=tuple(tuple(row) for row in saved.confusion)
    )
    shown = plots.best_confusion(run) or run.confusion
    return None if shown is not None and shown.matrix == matrix.matrix else matrix


def _gallery(gallery: SavedGallery) -> Gallery:
    thumbnails = []
    for image in gallery.images:
        width, height = saved_evaluation.jpeg_size(image.jpeg)
        cells = (image.name, *image.cells)
        thumbnails.append(Thumbnail(jpeg=image.jpeg, width=width, height=height, cells=cells, heat=image.heat))
    return Gallery(head=("image", *gallery.head), thumbnails=thumbnails)
