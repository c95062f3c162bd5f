"""Draws the boxes that random crops and random erasing take, from random numbers and the size of the image.

This module does not import torch: data workers call it for each image file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

    def boxes(self, height: int, width: int) -> Boxes:
        """The crop of each sample, if all images have this size."""
        return draw_crops(self.numbers, height, width, self.arguments)

    def box(self, index: int, height: int, width: int) -> tuple[int, int, int, int]:
        """Top, left, height and width of the crop of one sample, whose image has this size."""
        boxes = draw_crops(self.numbers[:, index : index + 1], height, width, self.arguments)
        return int(boxes.top[0]), int(boxes.left[0]), int(boxes.height[0]), int(boxes.width[0])


def draw_boxes(
    numbers: FloatArray, height: int, width: int, scale: Sequence[float], ratio: Sequence[float], *, is_hole: bool
) -> Boxes:
    """For each column of `numbers`, float32 [NUM_BOX_DRAWS, n], the first of ten boxes that fits into the image.

    Args:
        scale: the area of the box / that of the image.
        ratio: its width / height, drawn evenly on a logarithmic scale, as in torchvision.
        is_hole: whether the box is smaller than the image, and `ratio` its height / width.
    """
    area = height * width * between(numbers[:NUM_ATTEMPTS], scale[0], scale[1])
    log_ratio = np.log(np.array(ratio))
    ratios = np.exp(between(numbers[NUM_ATTEMPTS : 2 * NUM_ATTEMPTS], log_ratio[0], log_ratio[1]))
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
    least, most = arguments["ratio"]
    crop_height, crop_width = height, width
    if width / height < least:
        crop_height = max(1, round(width / least))
    elif width / height > most:
        crop_width = max(1, round(height * most))
    missing = boxes.height == 0
    return Boxes(
        top=np.where(missing, (height - crop_height) // 2, boxes.top),
        left=np.where(missing, (width - crop_width) // 2, boxes.left),
        height=np.where(missing, crop_height, boxes.height),
        width=np.where(missing, crop_width, boxes.width),
    )


def between(numbers: npt.NDArray[Any], low: float, high: float) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) as numbers in [low, high)."""
    return numbers.astype(np.float64) * (high - low) + low
