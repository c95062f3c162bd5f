"""What `train eval RUN --report` keeps in the run's folder for the report: calibration, mistakes and hard images.

It is one JSON file with the thumbnails inside, so it is there whole or not at all.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from PIL import Image

from train import files

FORMAT: Final = 1
MAX_JPEG_BYTES: Final = 2**18
MAX_THUMBNAIL_PIXELS: Final = 512  # of a side
MAX_IMAGES: Final = 100


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
class GalleryImage:
    """One image with its thumbnail. name: its path, or the number of the sample. label, prediction: class names."""

    name: str
    label: str
    prediction: str
    confidence: float
    loss: float
    jpeg: bytes

    def to_json(self) -> dict[str, Any]:
        """JSON values; the thumbnail in base64."""
        return {**asdict(self), "jpeg": base64.b64encode(self.jpeg).decode()}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> GalleryImage:
        """Read `to_json`. Raises ValueError, TypeError or KeyError for anything else, and OSError for no JPEG."""
        jpeg = base64.b64decode(saved["jpeg"], validate=True)
        if len(jpeg) > MAX_JPEG_BYTES or max(jpeg_size(jpeg)) > MAX_THUMBNAIL_PIXELS:
            raise ValueError("the thumbnail is too large")
        name, label, prediction = (str(saved[key]) for key in ("name", "label", "prediction"))
        confidence, loss = float(saved["confidence"]), float(saved["loss"])
        return cls(name=name, label=label, prediction=prediction, confidence=confidence, loss=loss, jpeg=jpeg)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedEvaluation:
    """One evaluation, for the report.

    step, weights, standing: of the checkpoint, in words. measured: a description of the images. values: by metric.
    notes: caveats. classes, confusion: as in confusion.json; None for very many classes. mistakes: the most confident
    ones. hardest: of the weakest classes, the images with the highest loss, class by class.
    """

    step: int
    weights: str
    standing: str | None
    measured: str
    samples: int
    values: Mapping[str, float | None]
    notes: tuple[str, ...]
    classes: tuple[str, ...]
    confusion: Sequence[Sequence[int]] | None
    calibration: Calibration
    mistakes: tuple[GalleryImage, ...]
    hardest: tuple[GalleryImage, ...]


def write(path: Path, evaluation: SavedEvaluation) -> None:
    """Write the file, atomically. Raises Failure as `files.write_json`."""
    shallow = {name: getattr(evaluation, name) for name in SavedEvaluation.__slots__}
    galleries = {name: [image.to_json() for image in shallow[name]] for name in ("mistakes", "hardest")}
    calibration = {
        "error": evaluation.calibration.error,
        "bins": [asdict(each) for each in evaluation.calibration.bins],
    }
    files.write_json(path, {"format": FORMAT, **shallow, "calibration": calibration, **galleries})


def read(path: Path) -> SavedEvaluation | None:
    """Read the file. None if it is not there, or of another version: a report never fails because of it."""
    try:
        saved = files.read_json(path)
        if saved["format"] != FORMAT:
            return None
        bins = [
            CalibrationBin(
                images=int(each["images"]), confidence=float(each["confidence"]), accuracy=float(each["accuracy"])
            )
            for each in saved["calibration"]["bins"]
        ]
        mistakes, hardest = (
            tuple(GalleryImage.from_json(image) for image in saved[name][:MAX_IMAGES])
            for name in ("mistakes", "hardest")
        )
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
            values={str(name): None if value is None else float(value) for name, value in saved["values"].items()},
            notes=tuple(map(str, saved["notes"])),
            classes=classes,
            confusion=confusion,
            calibration=Calibration(error=float(saved["calibration"]["error"]), bins=tuple(bins)),
            mistakes=mistakes,
            hardest=hardest,
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, Image.DecompressionBombError):
        return None


def jpeg_size(jpeg: bytes) -> tuple[int, int]:
    """(width, height) in pixels. Raises OSError for anything but a JPEG."""
    with Image.open(io.BytesIO(jpeg), formats=("JPEG",)) as image:
        return image.size
