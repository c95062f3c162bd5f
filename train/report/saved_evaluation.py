"""What `train eval RUN --report` keeps in the run's folder for the report: values of diagrams, and images.

It is one JSON file with the thumbnails inside, so it is there whole or not at all.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from PIL import Image

from train import files
from train.tasks import TASKS

FORMAT: Final = 2
MAX_JPEG_BYTES: Final = 2**18
MAX_THUMBNAIL_PIXELS: Final = 512  # of a side
MAX_IMAGES: Final = 100  # of a gallery
MAX_GALLERIES: Final = 4
MAX_PAIRS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationBin:
    """The images whose confidence is in one interval. confidence, accuracy: their means; 0 without images."""

    images: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How well confidence agrees with accuracy. bins: of equal width, from 0 to 1. error: the ECE."""

    error: float
    bins: tuple[CalibrationBin, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelScore:
    """One label of several per image. images: that have it. predicted: that the model gives it. correct: both.

    average_precision: None without an image. threshold: the probability from which on the model gives the label.
    """

    name: str
    images: int
    predicted: int
    correct: int
    average_precision: float | None
    threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberPairs:
    """The true and the predicted number of some images, in the unit of the labels.

    name: of the number. images: all that were measured. mean_error: of all, prediction - number.
    """

    name: str
    images: int
    mean_error: float
    true: tuple[float, ...]
    predicted: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GalleryImage:
    """One image with its thumbnail. name: its path, or the number of the sample. cells: of the gallery's columns.

    heat: the same under a heat map of what speaks for the prediction, if there is one.
    """

    name: str
    cells: tuple[str, ...]
    jpeg: bytes
    heat: bytes | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON values; the pictures in base64."""
        pictures = {"jpeg": self.jpeg, "heat": self.heat}
        encoded = {key: None if data is None else base64.b64encode(data).decode() for key, data in pictures.items()}
        return {**asdict(self), **encoded}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> GalleryImage:
        """Read `to_json`. Raises ValueError, TypeError or KeyError for anything else, and OSError for no JPEG."""
        jpeg, heat = (None if saved[key] is None else _read_thumbnail(saved[key]) for key in ("jpeg", "heat"))
        if jpeg is None:
            raise ValueError("there is no thumbnail")
        return cls(name=str(saved["name"]), cells=tuple(map(str, saved["cells"])), jpeg=jpeg, heat=heat)


def _read_thumbnail(text: str) -> bytes:
    jpeg = base64.b64decode(text, validate=True)
    if len(jpeg) > MAX_JPEG_BYTES or max(jpeg_size(jpeg)) > MAX_THUMBNAIL_PIXELS:
        raise ValueError("the thumbnail is too large")
    return jpeg


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGallery:
    """Images under a title. head: the columns of each image's cells, after its name."""

    title: str
    head: tuple[str, ...]
    images: tuple[GalleryImage, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return {"title": self.title, "head": self.head, "images": [image.to_json() for image in self.images]}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> SavedGallery:
        """Read `to_json`. Raises as `GalleryImage.from_json`."""
        head = tuple(map(str, saved["head"]))
        images = tuple(GalleryImage.from_json(image) for image in saved["images"][:MAX_IMAGES])
        if any(len(image.cells) != len(head) for image in images):
            raise ValueError("an image has other columns than its gallery")
        return cls(title=str(saved["title"]), head=head, images=images)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedEvaluation:
    """One evaluation, for the report.

    step, weights, standing: of the checkpoint, in words. measured: a description of the images. values: by metric.
    notes: caveats. classes, confusion: as in confusion.json; None for very many classes, and for other tasks.
    calibration, labels, numbers: what the task has of them.
    """

    step: int
    weights: str
    standing: str | None
    measured: str
    samples: int
    task: str
    values: Mapping[str, float | None]
    notes: tuple[str, ...]
    classes: tuple[str, ...]
    galleries: tuple[SavedGallery, ...]
    confusion: Sequence[Sequence[int]] | None = None
    calibration: Calibration | None = None
    labels: tuple[LabelScore, ...] = ()
    numbers: NumberPairs | None = None


def write(path: Path, evaluation: SavedEvaluation) -> None:
    """Write the file, atomically. Raises Failure as `files.write_json`."""
    shallow = {field.name: getattr(evaluation, field.name) for field in fields(evaluation)}
    deep = {name: None if shallow[name] is None else asdict(shallow[name]) for name in ("calibration", "numbers")}
    labels, galleries = map(asdict, evaluation.labels), (gallery.to_json() for gallery in evaluation.galleries)
    files.write_json(path, {"format": FORMAT, **shallow, **deep, "labels": [*labels], "galleries": [*galleries]})


def read(path: Path) -> SavedEvaluation | None:
    """Read the file. None if it is not there, or of another version: a report never fails because of it."""
    try:
        saved = files.read_json(path)
        if saved["format"] != FORMAT:
            return None
        rows = saved["confusion"]
        classes = tuple(map(str, saved["classes"]))
        confusion = None if rows is None else tuple(tuple(map(int, row)) for row in rows)
        if confusion is not None and [len(row) for row in confusion] != [len(classes)] * len(classes):
            return None
        return SavedEvaluation(
            step=int(saved["step"]),
            weights=str(saved["weights"]),
            standing=None if saved["standing"] is None else str(saved["standing"]),
            measured=str(saved["measured"]),
            samples=int(saved["samples"]),
            task=TASKS[saved["task"]].name,
            values={str(name): None if value is None else float(value) for name, value in saved["values"].items()},
            notes=tuple(map(str, saved["notes"])),
            classes=classes,
            galleries=tuple(SavedGallery.from_json(gallery) for gallery in saved["galleries"][:MAX_GALLERIES]),
            confusion=confusion,
            calibration=_read_calibration(saved["calibration"]),
            labels=tuple(_read_label_score(label) for label in saved["labels"]),
            numbers=_read_number_pairs(saved["numbers"]),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, Image.DecompressionBombError):
        return None


def _read_calibration(saved: Mapping[str, Any] | None) -> Calibration | None:
    if saved is None:
        return None
    bins = (
        CalibrationBin(
            images=int(each["images"]), confidence=float(each["confidence"]), accuracy=float(each["accuracy"])
        )
        for each in saved["bins"]
    )
    return Calibration(error=float(saved["error"]), bins=tuple(bins))


def _read_label_score(saved: Mapping[str, Any]) -> LabelScore:
    precision = saved["average_precision"]
    return LabelScore(
        name=str(saved["name"]),
        images=int(saved["images"]),
        predicted=int(saved["predicted"]),
        correct=int(saved["correct"]),
        average_precision=None if precision is None else float(precision),
        threshold=float(saved["threshold"]),
    )


def _read_number_pairs(saved: Mapping[str, Any] | None) -> NumberPairs | None:
    if saved is None:
        return None
    true, predicted = (tuple(map(float, saved[name][:MAX_PAIRS])) for name in ("true", "predicted"))
    mean_error = float(saved["mean_error"])
    if len(true) != len(predicted) or not all(map(math.isfinite, (*true, *predicted, mean_error))):
        raise ValueError("the numbers are no pairs")
    return NumberPairs(
        name=str(saved["name"]), images=int(saved["images"]), mean_error=mean_error, true=true, predicted=predicted
    )


def jpeg_size(jpeg: bytes) -> tuple[int, int]:
    """(width, height) in pixels. Raises OSError for anything but a JPEG."""
    with Image.open(io.BytesIO(jpeg), formats=("JPEG",)) as image:
        return image.size
