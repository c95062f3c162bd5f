"""From stored pixels to a model's input, batchwise: moved as each sample's own key says, then normalized."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from train import keyed
from train.data.shape import Shape

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
    kind: Literal["standard", "none"],
    samples: npt.NDArray[np.int64],
    *,
    shape: Shape,
    seed: int,
    epoch: int,
    mirror: bool = True,
) -> Moves:
    """Each sample's moves in this epoch: the same on any rank, in any batch, and in all frames of a clip.

    mirror: whether a mirror image is of the same class (`Sets.mirror`). The shifts do not depend on it.
    """
    if kind == "none":
        still = np.zeros(len(samples), np.int64)
        return Moves(down=still, right=still, mirror=still)
    height, width = shape.size[-2:]
    draw = keyed.uniform(keyed.AUGMENT, seed, epoch, np.arange(3)[:, None], samples)
    down, right = (
        (one * (2 * (side // REACH) + 1)).astype(np.int64) - side // REACH
        for one, side in zip(draw[:2], (height, width), strict=True)
    )
    return Moves(down=down, right=right, mirror=((draw[2] < 0.5) & mirror).astype(np.int64))


def apply(pixels: Tensor, rows: Tensor, shifts: Tensor) -> Tensor:
    """One batch from a pool of images or clips, in one gather.

    Args:
        pixels: uint8 or float [N, *size, channels].
        rows: int64 [n], which of the N samples.
        shifts: int64 [3, n]: down, right, mirror. What moves in from outside is the image's own mirror image.

    Returns:
        float32 [n, channels, *size], channels last in memory.
    """
    *frames, height, width, channels = pixels.shape[1:]
    images = math.prod(frames)  # of one sample: 1, or the frames of a clip
    down, right, mirror = shifts[:, :, None]
    across = torch.arange(width, device=pixels.device)
    across = _inside(torch.where(mirror == 1, width - 1 - across, across) + right, width)
    along = _inside(torch.arange(height, device=pixels.device) + down, height)
    image = rows[:, None] * images + torch.arange(images, device=pixels.device)
    flat = (image[:, :, None] * height + along[:, None, :])[..., None] * width + across[:, None, None, :]
    gathered = pixels.view(-1, channels).index_select(0, flat.view(-1))
    return normalized(gathered.view(len(rows), *pixels.shape[1:]))


def normalized(pixels: Tensor) -> Tensor:
    """[n, *size, channels] as float32 [n, channels, *size]: bytes are laid around 0, other numbers stay."""
    moved = pixels.movedim(-1, 1)
    return moved.float().sub_(MIDDLE).div_(SPREAD) if pixels.dtype == torch.uint8 else moved.float()


def _inside(place: Tensor, size: int) -> Tensor:
    """Reflect what lies outside 0..size-1 at the border."""
    return (size - 1) - ((size - 1) - place.abs()).abs()
