"""Image sizes that differ from data.image_size: that of evaluations, and those of the first epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from entrypoint import ExitCode, Failure
from train.config.schema import DataConfig
from train.data.shape import ImageSize, Shape, height_and_width
from train.data.splits import DataSplits

SIZE_STEP: Final = 8  # pixels: networks halve the size up to five times, and few sizes need few kernels


def with_evaluation_size(splits: DataSplits, size: ImageSize | None) -> DataSplits:
    """The data with validation and test images of this size; None: of the same size as the training images.

    Raises:
        Failure: USAGE for samples that are not read from image files.
    """
    if size is None or splits.shape.size == height_and_width(size):
        return splits
    return replace(
        splits,
        validation=splits.validation.resized(size),
        test=None if splits.test is None else splits.test.resized(size),
        evaluation_shape=Shape(channels=splits.shape.channels, size=height_and_width(size)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressiveSize:
    """The shorter side of the training images in each epoch: from `start` pixels it grows to `full` in `epochs` epochs.

    It is a function of the epoch, so that a resumed run goes on with the same size. Touvron et al.: Fixing the
    train-test resolution discrepancy (2019); Tan, Le: EfficientNetV2 (2021).
    """

    start: int
    full: int
    epochs: int

    @classmethod
    def of_config(cls, data: DataConfig, shape: Shape) -> Self | None:
        """data.progressive_size for samples of this shape; None without it.

        Raises:
            Failure: USAGE for clips, and for a start that is not smaller than the samples.
        """
        chosen: Mapping[str, Any] = data.progressive_size
        if not chosen:
            return None
        full = min(shape.size)
        if len(shape.size) != 2 or chosen["start"] >= full:
            raise Failure(
                "data.progressive_size grows from a smaller size to that of the images",
                found=f"start: {chosen['start']}, and samples of {shape}",
                fix="set data.progressive_size.start to fewer pixels, or leave data.progressive_size out",
                code=ExitCode.USAGE,
            )
        return cls(start=chosen["start"], full=full, epochs=chosen["epochs"])

    def side(self, epoch: int) -> int:
        """The shorter side in an epoch, counted from 0: a multiple of SIZE_STEP more than `start`, up to `full`."""
        if epoch >= self.epochs:
            return self.full
        grown = (self.full - self.start) * epoch // self.epochs
        return self.start + grown // SIZE_STEP * SIZE_STEP

    def scale(self, images: Tensor, epoch: int) -> Tensor:
        """Images [n, channels, height, width] in the size of this epoch: bilinear, with antialiasing."""
        side = self.side(epoch)
        if side == self.full:
            return images
        height, width = (round(length * side / self.full) for length in images.shape[-2:])
        scaled = interpolate(images, size=(height, width), mode="bilinear", antialias=True, align_corners=False)
        return scaled.contiguous(memory_format=torch.channels_last)


def other_shapes(data: DataConfig, splits: DataSplits) -> list[Shape]:
    """The shapes beside data.image_size that the network must take: of evaluations, and of the first epoch.

    Raises:
        Failure: as `ProgressiveSize.of_config`.
    """
    shapes = [] if splits.evaluation_shape is None else [splits.evaluation_shape]
    progressive = ProgressiveSize.of_config(data, splits.shape)
    if progressive is not None:
        sides = tuple(round(side * progressive.start / progressive.full) for side in splits.shape.size)
        shapes.append(Shape(channels=splits.shape.channels, size=sides))
    return shapes
