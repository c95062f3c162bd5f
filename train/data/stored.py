"""Samples that lie in one array, in memory or mapped from a file: taken by number, checked, and resized if need be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from entrypoint import ExitCode, Failure

Samples = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Stored:
    """Some rows of an array. Forked workers share its memory; nothing is copied but what is read.

    pixels: uint8 or float [N, *size, channels], any strides. rows: int64 [count], which of the N. labels: int64
    [count]. name: of the file, for errors. size: what images are resized to; None: they stay.
    """

    pixels: Tensor
    rows: Tensor
    labels: Tensor
    name: str
    size: int | None = None

    def read(self, samples: Samples) -> Tensor:
        """uint8 or float32 [n, *size, channels].

        Raises:
            Failure: DATA for numbers that are not finite, naming the first such sample.
        """
        rows = self.rows[torch.from_numpy(samples)]
        taken = _gathered(self.pixels, rows)
        if taken.dtype != torch.uint8:
            taken = taken.float()
            self._refuse_not_finite(taken, rows)
        return taken if self.size is None else resized(taken, self.size)

    def _refuse_not_finite(self, taken: Tensor, rows: Tensor) -> None:
        fine = taken.flatten(1).isfinite().all(dim=1)
        if not fine.all():
            row = int(rows[int(fine.int().argmin())])
            raise Failure(
                f"sample {row} holds numbers that are not finite",
                found=f"{self.name}: NaN or infinity in row {row}",
                expected="finite numbers",
                fix="replace or remove the sample",
                code=ExitCode.DATA,
            )


def _gathered(pixels: Tensor, rows: Tensor) -> Tensor:
    """These rows. Numbers that are mapped from an .npz may begin at any byte, which torch does not expect: as bytes."""
    if pixels.data_ptr() % pixels.itemsize == 0 or pixels.stride(-1) != 1:
        return pixels[rows].contiguous()
    return pixels.view(torch.uint8)[rows].contiguous().view(pixels.dtype)


def whole(pixels: Tensor, labels: Tensor, name: str, size: int | None = None) -> Stored:
    """All rows of an array; resized only where `size` is not theirs already."""
    size = None if size is None or tuple(pixels.shape[1:3]) == (size, size) else size
    return Stored(pixels, torch.arange(len(labels)), labels, name, size)


def part(source: Stored, chosen: Tensor) -> Stored:
    """The samples where `chosen` (bool [count]) is true, of the same array."""
    return Stored(source.pixels, source.rows[chosen], source.labels[chosen], source.name, source.size)


def resized(images: Tensor, size: int) -> Tensor:
    """uint8 [n, height, width, channels] as [n, size, size, channels]: bilinear, each result the mean of what it
    covers, so that a smaller image is not made of single pixels."""
    moved = interpolate(images.movedim(-1, 1), size=(size, size), mode="bilinear", antialias=True, align_corners=False)
    return moved.movedim(1, -1).contiguous()
