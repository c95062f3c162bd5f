"""This module draws random images, for measurements that do not depend on what the images show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from train.config.schema import DataConfig
from train.data.shape import Shape, height_and_width
from train.data.splits import DataSplits, SampleIndices


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomImages:
    """Images [n, size, size, 3] and their labels, in memory."""

    pixels: Tensor
    labels: Tensor

    def read(self, samples: SampleIndices) -> Tensor:
        """Return the images of these samples."""
        return self.pixels[torch.from_numpy(samples)]


def random_images(data: DataConfig) -> DataSplits:
    """Draw `data.samples` images for training and an eighth as many for validation, the same each time."""
    num_validation = max(1, data.samples // 8) if data.val_fraction else 0
    return DataSplits(
        training=_draw(data, data.samples, 0),
        validation=_draw(data, num_validation, 1),
        classes=tuple(map(str, range(data.classes))),
        shape=Shape(channels=3, size=height_and_width(data.image_size)),
    )


def _draw(data: DataConfig, number: int, seed: int) -> RandomImages:
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (number, *height_and_width(data.image_size), 3), np.uint8)
    labels = rng.integers(0, data.classes, number, np.int64)
    return RandomImages(pixels=torch.from_numpy(pixels), labels=torch.from_numpy(labels))
