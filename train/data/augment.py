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
    covered = [_outside(along, height)[:, :, None] | _outside(across, width)[:, None, :]] if gray else []
    covered += [_square(hole[0], hole[1], height, width)] if hole else []
    for mask in covered:
        moved.masked_fill_(mask.view(len(rows), 1, *(1 for _ in frames), height, width), 0)
    return moved


def normalized(pixels: Tensor) -> Tensor:
    """[n, *size, channels] as float32 [n, channels, *size]: bytes are laid around 0, other numbers stay."""
    moved = pixels.movedim(-1, 1)
    return moved.float().sub_(MIDDLE).div_(SPREAD) if pixels.dtype == torch.uint8 else moved.float()


def _inside(place: Tensor, size: int) -> Tensor:
    """Reflect what lies outside 0..size-1 at the border."""
    return (size - 1) - ((size - 1) - place.abs()).abs()


def _outside(place: Tensor, size: int) -> Tensor:
    return (place < 0) | (place >= size)


def _square(row: Tensor, column: Tensor, height: int, width: int) -> Tensor:
    """Where the square around these places [n, 1] lies, bool [n, height, width]; a part of it may be outside."""
    side = max(1, int(HOLE * min(height, width)))
    down, right = (
        (torch.arange(size, device=row.device) - middle + side // 2)
        for size, middle in ((height, row), (width, column))
    )
    return ~_outside(down, side)[:, :, None] & ~_outside(right, side)[:, None, :]
