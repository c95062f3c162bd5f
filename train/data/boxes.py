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
class CropDraws:
    """The random numbers of a box in each of n samples, float32 [NUM_BOX_DRAWS, n].

    arguments: of random_resized_crop or random_erasing. scale: the area of the box / that of the image. ratio: its
    width / height, drawn evenly on a logarithmic scale, as in torchvision.
    """

    numbers: FloatArray
    arguments: Mapping[str, Any]
    _attempts: list[tuple[list[float], ...]] = field(default_factory=list, compare=False)

    def box(self, index: int, height: int, width: int) -> tuple[int, int, int, int]:
        """Top, left, height and width of the crop of one sample, whose image has this size.

        If none of ten boxes fits, it is the largest central one whose ratio is allowed.
        """
        return self._first_fitting(index, height, width) or _central_box(height, width, self.arguments["ratio"])

    def hole(self, index: int, height: int, width: int) -> tuple[int, int, int, int] | None:
        """As `box`, but smaller than the image, and `ratio` is its height / width; None if none of ten boxes fits."""
        return self._first_fitting(index, height, width, is_hole=True)

    def _first_fitting(
        self, index: int, height: int, width: int, *, is_hole: bool = False
    ) -> tuple[int, int, int, int] | None:
        if not self._attempts:  # for all samples at once: NumPy takes a twentieth of the time of one by one
            shapes = _shares_and_ratios(self.numbers, self.arguments["scale"], self.arguments["ratio"])
            corners = self.numbers[2 * NUM_ATTEMPTS :].astype(np.float64)
            self._attempts.extend(zip(*(part.T.tolist() for part in (*shapes, corners)), strict=True))
        shares, ratios, (top, left) = self._attempts[index]
        for share, ratio in zip(shares, ratios, strict=True):
            area = height * width * share
            short, long = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            box_height, box_width = (long, short) if is_hole else (short, long)
            if 0 < box_height <= height - is_hole and 0 < box_width <= width - is_hole:
                return int(top * (height - box_height + 1)), int(left * (width - box_width + 1)), box_height, box_width
        return None


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
