"""Makes the thumbnails of the images that a report of an evaluation shows, with heat maps if they are asked for."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from entrypoint import Failure
from train.data.splits import SampleSource
from train.evaluation.mistakes import Selection
from train.inference import explanation
from train.inference.explanation import displayable
from train.report.saved_evaluation import GalleryImage, SavedGallery
from train.tasks.base import Int64Array

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
    images, above = [], os.path.join(root, "")  # "" stays "": "/" would be the beginning of an absolute path
    for number, (row, cells) in enumerate(zip(selection.rows, selection.cells, strict=True)):
        sample = int(samples[row])
        try:
            pixels = source.read(np.array([sample]))
        except Failure:
            continue
        name = source.names(np.array([sample]))[0].removeprefix(above)
        shown, heat = displayable(pixels[0]), None
        if explain is not None:
            outputs = None if selection.outputs is None else [selection.outputs[number]]
            heat = encode_thumbnail(explanation.blend(shown, explain(pixels, outputs)[0].numpy()))
        images.append(GalleryImage(name=name, cells=tuple(cells), jpeg=encode_thumbnail(shown), heat=heat))
    return SavedGallery(title=selection.title, head=selection.head, images=tuple(images))


def encode_thumbnail(pixels: npt.NDArray[np.uint8]) -> bytes:
    """A JPEG of at most MAX_SIDE pixels. pixels: [height, width] or [height, width, 3]."""
    image = Image.fromarray(pixels)
    image.thumbnail((MAX_SIDE, MAX_SIDE), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=JPEG_QUALITY, subsampling=0)
    return out.getvalue()
