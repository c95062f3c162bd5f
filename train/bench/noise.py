"""Random bytes as a data set: for figures that do not depend on what is in the images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from train.config.schema import DataConfig
from train.data.shape import Shape
from train.data.splits import DataSplits, SampleIndices

NAME = f"{__name__}:images"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Images [n, size, size, 3] and their labels, in memory."""

    pixels: Tensor
    labels: Tensor

    def read(self, samples: SampleIndices) -> Tensor:
        """Those rows."""
        return self.pixels[torch.from_numpy(samples)]


def images(data: DataConfig) -> DataSplits:
    """`data.samples` images for training and an eighth as many held out, the same each time."""
    validation = max(1, data.samples // 8) if data.val_fraction else 0
    return DataSplits(
        training=_drawn(data, data.samples, 0),
        validation=_drawn(data, validation, 1),
        classes=tuple(map(str, range(data.classes))),
        shape=Shape(channels=3, size=(data.image_size, data.image_size)),
    )


def _drawn(data: DataConfig, number: int, seed: int) -> Noise:
    draw = np.random.default_rng(seed)
    pixels = draw.integers(0, 256, (number, data.image_size, data.image_size, 3), np.uint8)
    labels = draw.integers(0, data.classes, number, np.int64)
    return Noise(pixels=torch.from_numpy(pixels), labels=torch.from_numpy(labels))
