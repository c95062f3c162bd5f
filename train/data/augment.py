"""From stored pixels to a model's input, batchwise: moved as each sample's own key says, then normalized."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from train import keyed
from train.data.shape import Shape

MIDDLE: Final = 127.5  # bytes to about -2..2, whatever the data: no statistics to keep with the weights
SPREAD: Final = 63.75
REACH: Final = 8  # a shift is at most an eighth of the image
HOLE: Final = 3 / 8  # the side of what is cut out, of the image's shorter side: 12 of 32 pixels

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """What happens to each of n samples: shifts in pixels, and 1 where it is mirrored. int64, [n] each.

    hole: row and column of the middle of the square that is cut out, int64 [2, n]; None: nothing is.
    gray: whether what moves in from outside is gray, and not the image's own mirror image.
    """

    down: Numbers
    right: Numbers
    mirror: Numbers
    hole: Numbers | None = None
    gray: bool = False

    def packed(self) -> Numbers:
        """All numbers in one array, int64 [3 or 5, n], for one copy to the device."""
        return np.stack([self.down, self.right, self.mirror, *(() if self.hole is None else self.hole)])


def moves(
    kind: str | Collection[str],
    samples: Numbers,
    *,
    shape: Shape,
    seed: int,
    epoch: int,
    mirror: bool = True,
) -> Moves:
    """Each sample's moves in this epoch: the same on any rank, in any batch, and in all frames of a clip.

    Args:
        kind: of `data.augment`, one word or several.
        mirror: whether a mirror image is of the same class (`Sets.mirror`). The shifts do not depend on it.
    """
    kinds = {kind} if isinstance(kind, str) else set(kind)
    height, width = shape.size[-2:]
    draw = _draw(kinds, seed, epoch, samples)
    still = np.zeros(len(samples), np.int64)
    down, right, mirrored = still, still, still
    if kinds & {"standard", "translate"}:
        down, right = _shift(draw[0], height), _shift(draw[1], width)
    if mirror and kinds & {"standard", "mirror"}:
        mirrored = (draw[2] < 0.5).astype(np.int64)
    hole = _place(draw[3:5], height, width) if "cutout" in kinds else None
    return Moves(down=down, right=right, mirror=mirrored, hole=hole, gray="translate" in kinds)


def is_still(kind: str | Collection[str]) -> bool:
    """Whether images stay as they are: then there is nothing to draw or to gather."""
    return ({kind} if isinstance(kind, str) else set(kind)) == {"none"}


def _draw(kinds: Collection[str], seed: int, epoch: int, samples: Numbers) -> npt.NDArray[np.float32]:
    """Each word has numbers of its own: another word beside it does not change what it does."""
    streams = 0 if kinds == {"none"} else 5 if "cutout" in kinds else 3
    return keyed.uniform(keyed.AUGMENT, seed, epoch, np.arange(streams)[:, None], samples)


def _shift(draw: npt.NDArray[np.float32], side: int) -> Numbers:
    return (draw * (2 * (side // REACH) + 1)).astype(np.int64) - side // REACH


def _place(draw: npt.NDArray[np.float32], height: int, width: int) -> Numbers:
    return (draw * np.array([[height], [width]], np.float32)).astype(np.int64)


def apply(pixels: Tensor, rows: Tensor, shifts: Tensor, *, gray: bool = False) -> Tensor:
    """One batch from a pool of images or clips, in one gather.

    Args:
        pixels: uint8 or float [N, *size, channels].
        rows: int64 [n], which of the N samples.
        shifts: int64 [3 or 5, n], as `Moves.packed` gives them.
        gray: what moves in from outside is gray (0); else it is the image's own mirror image.

    Returns:
        float32 [n, channels, *size], channels last in memory.
    """
    *frames, height, width, channels = pixels.shape[1:]
    images = math.prod(frames)  # of one sample: 1, or the frames of a clip
    down, right, mirror, *hole = shifts[:, :, None]
    across = torch.arange(width, device=pixels.device)
    across = torch.where(mirror == 1, width - 1 - across, across) + right
    along = torch.arange(height, device=pixels.device) + down
    image = rows[:, None] * images + torch.arange(images, device=pixels.device)
    line = image[:, :, None] * height + _inside(along, height)[:, None, :]
    flat = line[..., None] * width + _inside(across, width)[:, None, None, :]
    gathered = pixels.view(-1, channels).index_select(0, flat.view(-1))
    moved = normalized(gathered.view(len(rows), *pixels.shape[1:]))
    # By lines of memory: an inner loop over three channels would take longer.
    lines = moved.movedim(1, -1).view(len(rows), images, height, width * channels)
    if gray:
        lines.mul_(_within(along, height)[:, None, :, None])
        lines.mul_(_wide(_within(across, width), channels)[:, None])
    if hole:
        down, right = (
            _cut(size, middle, min(height, width)) for size, middle in zip((height, width), hole, strict=True)
        )
        lines.mul_((1 - down[:, :, None] * _wide(right, channels))[:, None])
    return moved


def normalized(pixels: Tensor) -> Tensor:
    """[n, *size, channels] as float32 [n, channels, *size]: bytes are laid around 0, other numbers stay."""
    moved = pixels.movedim(-1, 1)
    return moved.float().sub_(MIDDLE).div_(SPREAD) if pixels.dtype == torch.uint8 else moved.float()


def _inside(place: Tensor, size: int) -> Tensor:
    """Reflect what lies outside 0..size-1 at the border."""
    return (size - 1) - ((size - 1) - place.abs()).abs()


def _within(place: Tensor, size: int) -> Tensor:
    """1 where a place lies in 0..size-1, else 0."""
    return ((place >= 0) & (place < size)).float()


def _cut(size: int, middle: Tensor, shorter: int) -> Tensor:
    """[n, size]: 1 where the square around the middles [n, 1] lies, else 0."""
    side = max(1, int(HOLE * shorter))
    return _within(torch.arange(size, device=middle.device) - middle + side // 2, side)


def _wide(columns: Tensor, channels: int) -> Tensor:
    """[n, width] as it lies in memory, with the channels: [n, 1, width * channels]."""
    return columns.repeat_interleave(channels, dim=1)[:, None, :]
