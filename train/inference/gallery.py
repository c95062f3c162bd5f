"""Chooses the images of an evaluation that are worth a look, and makes thumbnails of them.

Their number is bounded, so that a report stays small for any data set.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from entrypoint import Failure
from train.data.splits import SampleSource
from train.inference.per_image import ImageResults, Int64Array, SampleNames
from train.report.saved_evaluation import GalleryImage

MAX_MISTAKES: Final = 24
MAX_HARD_CLASSES: Final = 10
MAX_HARD_IMAGES: Final = 3  # of each class
MAX_SIDE: Final = 128  # pixels of a thumbnail
JPEG_QUALITY: Final = 90


def confident_mistakes(results: ImageResults) -> Int64Array:
    """The rows of `results` whose prediction is wrong, the most confident one first."""
    wrong = np.flatnonzero(~results.correct & np.isfinite(results.confidences))
    return wrong[np.argsort(-results.confidences[wrong], kind="stable")][:MAX_MISTAKES]


def hardest_images(results: ImageResults) -> Int64Array:
    """The rows with the highest loss in each class. Of many classes those with the lowest recall, in their order."""
    labels = np.unique(results.labels)
    recall = [float(results.correct[results.labels == label].mean()) for label in labels]
    weakest = np.sort(labels[np.argsort(recall, kind="stable")][:MAX_HARD_CLASSES])
    rows = [np.flatnonzero((results.labels == label) & np.isfinite(results.losses)) for label in weakest]
    hardest = [of_class[np.argsort(-results.losses[of_class], kind="stable")][:MAX_HARD_IMAGES] for of_class in rows]
    return np.concatenate([np.empty(0, np.int64), *hardest])


def make_gallery(
    rows: Int64Array, results: ImageResults, source: SampleSource, names: SampleNames, root: str, classes: Sequence[str]
) -> tuple[GalleryImage, ...]:
    """The images of these rows. One that cannot be read any more is left out. root: left out of their paths."""
    images = []
    for row in rows.tolist():
        sample = int(results.samples[row])
        try:
            pixels = source.read(np.array([sample]))[0]
        except Failure:
            continue
        image = GalleryImage(
            name=str(names.names[sample]).removeprefix(f"{root.rstrip('/')}/"),
            label=classes[int(results.labels[row])],
            prediction=classes[int(results.predictions[row])],
            confidence=float(results.confidences[row]),
            loss=float(results.losses[row]),
            jpeg=thumbnail(pixels),
        )
        images.append(image)
    return tuple(images)


def thumbnail(pixels: Tensor) -> bytes:
    """A JPEG of at most MAX_SIDE pixels. pixels: one sample [*frames, height, width, channels] of any dtype."""
    image = Image.fromarray(displayable(pixels))
    image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return out.getvalue()


def displayable(pixels: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """uint8 [height, width] or [height, width, 3]: of a clip the middle frame, of many channels the first.

    Values that are no bytes are stretched from the sample's lowest to its highest one.
    """
    while pixels.ndim > 3:
        pixels = pixels[len(pixels) // 2]
    pixels = pixels if pixels.shape[-1] == 3 else pixels[..., 0]
    if pixels.dtype != torch.uint8:
        values = pixels.double().nan_to_num()
        low, high = values.min(), values.max()
        pixels = ((values - low) / (high - low).clamp_min(1e-12) * 255).round().to(torch.uint8)
    array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = pixels.contiguous().numpy()
    return array
