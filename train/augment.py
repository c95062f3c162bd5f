"""From stored pixels to a model's input, batchwise: moved as each sample's own key says, then normalized."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from train import keyed

MIDDLE: Final = 127.5  # bytes to about -2..2, whatever the data: no statistics to keep with the weights
SPREAD: Final = 63.75
REACH: Final = 8  # a shift is at most an eighth of the image


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """What happens to each of n samples: shifts in pixels, and 1 where it is mirrored. int64, [n] each."""

    down: npt.NDArray[np.int64]
    right: npt.NDArray[np.int64]
    mirror: npt.NDArray[np.int64]


def moves(
    kind: Literal["standard", "none"], samples: npt.NDArray[np.int64], *, size: int, seed: int, epoch: int
) -> Moves:
    """Each sample's moves in this epoch: the same on any rank, in any batch."""
    if kind == "none":
        still = np.zeros(len(samples), np.int64)
        return Moves(down=still, right=still, mirror=still)
    reach = size // REACH
    draw = keyed.uniform(keyed.AUGMENT, seed, epoch, np.arange(3)[:, None], samples)
    shifts = (draw[:2] * (2 * reach + 1)).astype(np.int64) - reach
    return Moves(down=shifts[0], right=shifts[1], mirror=(draw[2] < 0.5).astype(np.int64))


def apply(pixels: Tensor, rows: Tensor, shifts: Tensor) -> Tensor:
    """One batch from a pool of images, in one gather.

    Args:
        pixels: uint8 [N, size, size, 3].
        rows: int64 [n], which of the N images.
        shifts: int64 [3, n]: down, right, mirror. What moves in from outside is the image's own mirror image.

    Returns:
        float32 [n, 3, size, size], channels last in memory.
    """
    size = pixels.shape[1]
    line = torch.arange(size, device=pixels.device)
    down, right, mirror = shifts[:, :, None]
    across = torch.where(mirror == 1, size - 1 - line, line)
    flat = (rows[:, None, None] * size + _inside(line + down, size)[:, :, None]) * size
    flat = flat + _inside(across + right, size)[:, None, :]
    gathered = pixels.view(-1, 3).index_select(0, flat.view(-1))
    return normalized(gathered.view(len(rows), size, size, 3))


def normalized(pixels: Tensor) -> Tensor:
    """uint8 [n, size, size, 3] as float32 [n, 3, size, size] around 0."""
    return pixels.permute(0, 3, 1, 2).float().sub_(MIDDLE).div_(SPREAD)


def _inside(place: Tensor, size: int) -> Tensor:
    """Reflect what lies outside 0..size-1 at the border."""
    return (size - 1) - ((size - 1) - place.abs()).abs()
