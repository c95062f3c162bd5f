"""Builds the sections of a report that show what went wrong: calibration, mistakes and hard images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from train.metrics import METRICS, NOT_MEASURED
from train.report import plots, read, saved_evaluation
from train.report.document import Block, DescriptionList, Gallery, Paragraph, Picture, Section, Thumbnail
from train.report.read import ConfusionMatrix, RecordedRun
from train.report.saved_evaluation import Calibration, GalleryImage, SavedEvaluation
from train.run.record import EVALUATION_FILE

MISTAKES_TITLE: Final = "What went wrong"
ECE_TEXT: Final = (
    "A line is the accuracy of the images with that confidence, and the gap its distance from their mean confidence. "
    "Where the gap lies above the line, the model is too sure. The expected calibration error (ECE) is the mean gap "
    "over all images, in 15 bins of equal width (Guo et al., On Calibration of Modern Neural Networks, 2017)."
)
GALLERY_HEAD: Final = ("image", "true", "predicted", "confidence", "loss")


def mistakes_section(run: RecordedRun) -> Section | None:
    """Calibration and galleries of the evaluation that `train eval RUN --report` kept; None without one."""
    saved = saved_evaluation.read(run.folder / EVALUATION_FILE)
    if saved is None:
        return None
    blocks: list[Block] = [*_cautions(run, saved), DescriptionList(rows=_facts(saved))]
    matrix = _class_matrix(run, saved)
    if matrix is not None:
        blocks.append(plots.class_table(matrix))
    if saved.samples:
        png = plots.draw_calibration(saved.calibration)
        alt = f"Reliability diagram, expected calibration error {saved.calibration.error:.3f}"
        blocks += [Picture(name="calibration", png=png, alt=alt), Paragraph(text=ECE_TEXT)]
    if saved.mistakes:
        blocks.append(Paragraph(text=f"The most confident mistakes, {len(saved.mistakes)} of {_mistakes(saved)}:"))
        blocks.append(_gallery(saved.mistakes))
    if saved.hardest:
        shown = {image.label for image in saved.hardest}
        which = f"of the {len(shown)} classes with the lowest recall" if len(shown) < len(saved.classes) else "class"
        blocks.append(Paragraph(text=f"The images with the highest loss in each {which}:"))
        blocks.append(_gallery(saved.hardest))
    return Section(title=MISTAKES_TITLE, blocks=blocks)


def _mistakes(saved: SavedEvaluation) -> str:
    accuracy = saved.values.get("accuracy")
    return f"{round((1 - accuracy) * saved.samples):,}" if accuracy is not None else "all"


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
    shown = [metric for metric in METRICS.values() if len(saved.classes) >= metric.min_classes]
    scores = {metric.label: metric.format(saved.values.get(metric.name)) for metric in shown}
    error = saved.calibration.error
    return {
        "measured": saved.measured,
        "weights": f"of step {saved.step:,}{standing}, {saved.weights}",
        **{label: value for label, value in scores.items() if value != NOT_MEASURED},
        "calibration error": f"{error:.4f} (ECE)" if math.isfinite(error) else NOT_MEASURED,
        "mean confidence": f"{mean_confidence(saved.calibration):.2%}",
    }


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


def _gallery(images: Sequence[GalleryImage]) -> Gallery:
    thumbnails = []
    for image in images:
        width, height = saved_evaluation.jpeg_size(image.jpeg)
        confidence, loss = f"{image.confidence:.1%}", f"{image.loss:.2f}"
        cells = (image.name, image.label, image.prediction, confidence, loss)
        thumbnails.append(Thumbnail(jpeg=image.jpeg, width=width, height=height, cells=cells))
    return Gallery(head=GALLERY_HEAD, thumbnails=thumbnails)
