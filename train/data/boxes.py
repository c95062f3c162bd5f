"""Draws the boxes that random crops and random erasing take, from random numbers and the size of the image.

This module does not import torch: data workers call it for each image file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
NUM_ATTEMPTS: Final = 10  # to draw a box that lies inside the image, as in torchvision
NUM_BOX_DRAWS: Final = 2 * NUM_ATTEMPTS + 2  # random numbers for one box


@dataclass(frozen=True, slots=True)
class Boxes:
    """A box in each of n images, in pixels, int64 [n] each. height 0: no box."""

    top: Int64Array
    left: Int64Array
    height: Int64Array
    width: Int64Array


@dataclass(frozen=True, slots=True)
class CropDraws:
    """The random numbers of random_resized_crop for n samples, float32 [NUM_BOX_DRAWS, n], and its arguments."""

    numbers: FloatArray
    arguments: Mapping[str, Any]
    _attempts: list[tuple[list[float], ...]] = field(default_factory=list, compare=False)

    def boxes(self, height: int, width: int) -> Boxes:
        """The crop of each sample, if all images have this size."""
        return draw_crops(self.numbers, height, width, self.arguments)

    def box(self, index: int, height: int, width: int) -> tuple[int, int, int, int]:
        """Top, left, height and width of the crop of one sample, whose image has this size.

        As `boxes`, in a twentieth of the time for one image: Python rounds and takes roots as NumPy does.
        """
        if not self._attempts:
            shapes = _shares_and_ratios(self.numbers, self.arguments["scale"], self.arguments["ratio"])
            corners = self.numbers[2 * NUM_ATTEMPTS :].astype(np.float64)
            self._attempts.extend(zip(*(part.T.tolist() for part in (*shapes, corners)), strict=True))
        shares, ratios, (top, left) = self._attempts[index]
        for share, ratio in zip(shares, ratios, strict=True):
            area = height * width * share
            box_height, box_width = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < box_height <= height and 0 < box_width <= width:
                return int(top * (height - box_height + 1)), int(left * (width - box_width + 1)), box_height, box_width
        return _central_box(height, width, self.arguments["ratio"])


def draw_boxes(
    numbers: FloatArray, height: int, width: int, scale: Sequence[float], ratio: Sequence[float], *, is_hole: bool
) -> Boxes:
    """For each column of `numbers`, float32 [NUM_BOX_DRAWS, n], the first of ten boxes that fits into the image.

    Args:
        scale: the area of the box / that of the image.
        ratio: its width / height, drawn evenly on a logarithmic scale, as in torchvision.
        is_hole: whether the box is smaller than the image, and `ratio` its height / width.
    """
    shares, ratios = _shares_and_ratios(numbers, scale, ratio)
    area = height * width * shares
    long, short = np.rint(np.sqrt(area * ratios)), np.rint(np.sqrt(area / ratios))
    heights, widths = (long, short) if is_hole else (short, long)
    fits = (heights > 0) & (widths > 0) & (heights <= height - is_hole) & (widths <= width - is_hole)
    attempt, columns, is_box = fits.argmax(axis=0), np.arange(numbers.shape[1]), fits.any(axis=0)
    box_height = np.where(is_box, heights[attempt, columns], 0).astype(np.int64)
    box_width = np.where(is_box, widths[attempt, columns], 0).astype(np.int64)
    top, left = numbers[2 * NUM_ATTEMPTS :].astype(np.float64)
    return Boxes(
        top=np.where(is_box, top * (height - box_height + 1), 0).astype(np.int64),
        left=np.where(is_box, left * (width - box_width + 1), 0).astype(np.int64),
        height=box_height,
        width=box_width,
    )


def draw_crops(numbers: FloatArray, height: int, width: int, arguments: Mapping[str, Any]) -> Boxes:
    """The boxes of random_resized_crop. If none of ten fits, the largest central one whose ratio is allowed."""
    boxes = draw_boxes(numbers, height, width, arguments["scale"], arguments["ratio"], is_hole=False)
    top, left, crop_height, crop_width = _central_box(height, width, arguments["ratio"])
    missing = boxes.height == 0
    return Boxes(
        top=np.where(missing, top, boxes.top),
        left=np.where(missing, left, boxes.left),
        height=np.where(missing, crop_height, boxes.height),
        width=np.where(missing, crop_width, boxes.width),
    )


def _shares_and_ratios(
    numbers: FloatArray, scale: Sequence[float], ratio: Sequence[float]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The area / that of the image, and width / height, of all attempts [NUM_ATTEMPTS, n]."""
    log_ratio = np.log(np.array(ratio))
    ratios = np.exp(between(numbers[NUM_ATTEMPTS : 2 * NUM_ATTEMPTS], log_ratio[0], log_ratio[1]))
    return between(numbers[:NUM_ATTEMPTS], scale[0], scale[1]), ratios


def _central_box(height: int, width: int, ratio: Sequence[float]) -> tuple[int, int, int, int]:
    """Top, left, height and width of the largest central box whose ratio is allowed."""
    least, most = ratio
    crop_height, crop_width = height, width
    if width / height < least:
        crop_height = max(1, round(width / least))
    elif width / height > most:
        crop_width = max(1, round(height * most))
    return (height - crop_height) // 2, (width - crop_width) // 2, crop_height, crop_width


def between(numbers: npt.NDArray[Any], low: float, high: float) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) as numbers in [low, high)."""
    return numbers.astype(np.float64) * (high - low) + low
