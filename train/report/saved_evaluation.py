"""What `train eval RUN --report` keeps in the run's folder for the report: values of diagrams, and images.

It is one JSON file with the thumbnails inside, so it is there whole or not at all.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from PIL import Image

from train import files
from train.evaluation.mistakes import Calibration, LabelScore, NumberPairs
from train.tasks import TASKS

FORMAT: Final = 2
MAX_JPEG_BYTES: Final = 2**18
MAX_THUMBNAIL_PIXELS: Final = 512  # of a side
MAX_IMAGES: Final = 100  # of a gallery
MAX_GALLERIES: Final = 4
MAX_PAIRS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GalleryImage:
    """One image with its thumbnail. name: its path, or the number of the sample. cells: of the gallery's columns.

    heat: the same under a heat map of what speaks for the prediction, if there is one.
    """

    name: str
    cells: tuple[str, ...]
    jpeg: bytes
    heat: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedGallery:
    """Images under a title. head: the columns of each image's cells, after its name."""

    title: str
    head: tuple[str, ...]
    images: tuple[GalleryImage, ...]


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
    """Write the file, atomically, its pictures in base64. Raises Failure as `files.write_json`."""
    small = asdict(replace(evaluation, confusion=None), dict_factory=_encode_pictures)  # `asdict` copies each cell
    files.write_json(path, {"format": FORMAT, **small, "confusion": evaluation.confusion})


def _encode_pictures(values: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: base64.b64encode(value).decode() if isinstance(value, bytes) else value for name, value in values}


def read(path: Path) -> SavedEvaluation | None:
    """Read the file. None if it is not there, or of another version: a report never fails because of it."""
    try:
        saved = files.read_json(path)
        evaluation: SavedEvaluation = _decode(SavedEvaluation, saved)
        return evaluation if saved["format"] == FORMAT and _is_plausible(evaluation) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, Image.DecompressionBombError):
        return None


def _decode(hint: Any, value: Any) -> Any:
    """A JSON value as the type of a field. Raises ValueError, TypeError, KeyError or the like for anything else."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:  # with None
        return None if value is None else _decode(arguments[0], value)
    if origin in (tuple, Sequence):
        return tuple(_decode(arguments[0], item) for item in value)
    if origin is Mapping:
        return {str(key): _decode(arguments[1], item) for key, item in value.items()}
    if is_dataclass(hint) and isinstance(hint, type):
        hints = get_type_hints(hint)
        return hint(**{name: _decode(hints[name], value[name]) for name in hints})
    return base64.b64decode(value, validate=True) if hint is bytes else hint(value)


def _is_plausible(evaluation: SavedEvaluation) -> bool:
    """Whether `train eval` can have written it. Raises OSError for a picture that is no JPEG."""
    confusion, numbers, num_classes = evaluation.confusion, evaluation.numbers, len(evaluation.classes)
    images = [image for gallery in evaluation.galleries for image in gallery.images]
    pictures = [picture for image in images for picture in (image.jpeg, image.heat) if picture is not None]
    return (
        evaluation.task in TASKS
        and (confusion is None or [len(row) for row in confusion] == [num_classes] * num_classes)
        and len(evaluation.galleries) <= MAX_GALLERIES
        and all(len(gallery.images) <= MAX_IMAGES for gallery in evaluation.galleries)
        and all(len(image.cells) == len(gallery.head) for gallery in evaluation.galleries for image in gallery.images)
        and all(len(jpeg) <= MAX_JPEG_BYTES and max(jpeg_size(jpeg)) <= MAX_THUMBNAIL_PIXELS for jpeg in pictures)
        and (numbers is None or len(numbers.true) == len(numbers.predicted) <= MAX_PAIRS)
        and (numbers is None or all(map(math.isfinite, (*numbers.true, *numbers.predicted, numbers.mean_error))))
    )


def jpeg_size(jpeg: bytes) -> tuple[int, int]:
    """(width, height) in pixels. Raises OSError for anything but a JPEG."""
    with Image.open(io.BytesIO(jpeg), formats=("JPEG",)) as image:
        return image.size
