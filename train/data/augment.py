"""Augments and normalizes a batch of stored pixels on the device.

The augmentation of a sample is keyed by seed, epoch and sample, so it does not depend on the rank
or the batch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from train import rng
from train.config.augmentations import DEFAULT_SHIFT
from train.data.preprocessing import DEFAULT_PREPROCESSING, Preprocessing
from train.data.shape import Shape

LARGE_SAMPLE: Final = 3 * 96 * 96  # values: of 64, one by one takes less time on a CPU
MAX_BYTE: Final = 255
CUTOUT_FRACTION: Final = 3 / 8  # size of the cut square / shorter side of the image: 12 of 32 pixels

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class AugmentParameters:
    """The augmentation of n samples: shifts in pixels, and 1 for a mirrored sample. int64, [n] each.

    hole: row and column of the center of the square that is cut out, int64 [2, n]; None: no square.
    gray: whether the border that a shift uncovers is gray; else it mirrors the image.
    """

    down: Int64Array
    right: Int64Array
    mirror: Int64Array
    hole: Int64Array | None = None
    gray: bool = False

    def packed(self) -> Int64Array:
        """All numbers in one array, int64 [3 or 5, n], for one copy to the device."""
        return np.stack([self.down, self.right, self.mirror, *(() if self.hole is None else self.hole)])


def draw_parameters(
    augmentation: str | Collection[str],
    keys: Int64Array,
    *,
    shape: Shape,
    seed: int,
    epoch: int,
    mirror: bool = True,
    shift: float = DEFAULT_SHIFT,
) -> AugmentParameters:
    """Each sample's augmentation in this epoch: the same on any rank, in any batch, and in all frames of a clip.

    Args:
        augmentation: one word of data.augment's stage `moves`, or several.
        mirror: whether a mirror image is of the same class (`DataSplits.mirror`). The shifts do not depend on it.
        shift: the largest shift / the side of the image.
    """
    names = {augmentation} if isinstance(augmentation, str) else set(augmentation)
    height, width = shape.size[-2:]
    draw = _draw_numbers(names, seed, epoch, keys)
    still = np.zeros(len(keys), np.int64)
    down, right, mirrored = still, still, still
    if names & {"standard", "translate"}:
        down, right = _pixel_shift(draw[0], height * shift), _pixel_shift(draw[1], width * shift)
    if mirror and names & {"standard", "mirror"}:
        mirrored = (draw[2] < 0.5).astype(np.int64)
    hole = _cutout_center(draw[3:5], height, width) if "cutout" in names else None
    return AugmentParameters(down=down, right=right, mirror=mirrored, hole=hole, gray="translate" in names)


def is_identity(augmentation: str | Collection[str]) -> bool:
    """Whether images stay unchanged, so that nothing is drawn or gathered."""
    return ({augmentation} if isinstance(augmentation, str) else set(augmentation)) == {"none"}


def _draw_numbers(names: Collection[str], seed: int, epoch: int, keys: Int64Array) -> npt.NDArray[np.float32]:
    """Random numbers [streams, n]. Each word has its own streams, so adding a word does not change the others."""
    streams = 0 if names == {"none"} else 5 if "cutout" in names else 3
    return rng.uniform(rng.AUGMENT, seed, epoch, np.arange(streams)[:, None], keys)


def _pixel_shift(draw: npt.NDArray[np.float32], most: float) -> Int64Array:
    return (draw * (2 * int(most) + 1)).astype(np.int64) - int(most)


def _cutout_center(draw: npt.NDArray[np.float32], height: int, width: int) -> Int64Array:
    return (draw * np.array([[height], [width]], np.float32)).astype(np.int64)


def apply(
    pixels: Tensor,
    rows: Tensor,
    shifts: Tensor,
    *,
    gray: bool = False,
    preprocessing: Preprocessing = DEFAULT_PREPROCESSING,
) -> Tensor:
    """One batch from a pool of images or clips, in one gather.

    Args:
        pixels: uint8 or float [N, *size, channels].
        rows: int64 [n], which of the N samples.
        shifts: int64 [3 or 5, n], from `AugmentParameters.packed`.
        gray: the border that a shift uncovers is gray (0); else it mirrors the image.

    Returns:
        float32 [n, channels, *size], channels last in memory.
    """
    if _is_done_one_by_one(pixels) and not shifts[[0, 1, *range(3, len(shifts))]].any():
        return _normalize_one_by_one(pixels, preprocessing, rows=rows, mirror=shifts[2])
    *frames, height, width, channels = pixels.shape[1:]
    images = math.prod(frames)  # of one sample: 1, or the frames of a clip
    down, right, mirror, *hole = shifts[:, :, None]
    across = torch.arange(width, device=pixels.device)
    across = torch.where(mirror == 1, width - 1 - across, across) + right
    along = torch.arange(height, device=pixels.device) + down
    image = rows[:, None] * images + torch.arange(images, device=pixels.device)
    line = image[:, :, None] * height + _reflect(along, height)[:, None, :]
    flat = line[..., None] * width + _reflect(across, width)[:, None, None, :]
    sampled = pixels.view(-1, channels).index_select(0, flat.view(-1))
    moved = normalize(sampled.view(len(rows), *pixels.shape[1:]), preprocessing)
    # Whole rows of memory: an inner loop over three channels would take longer.
    lines = moved.movedim(1, -1).view(len(rows), images, height, width * channels)
    if gray:
        lines.mul_(_within_mask(along, height)[:, None, :, None])
        lines.mul_(_repeat_channels(_within_mask(across, width), channels)[:, None])
    if hole:
        down, right = (
            _cutout_mask(size, center, min(height, width)) for size, center in zip((height, width), hole, strict=True)
        )
        lines.mul_((1 - down[:, :, None] * _repeat_channels(right, channels))[:, None])
    return moved


def normalize(pixels: Tensor, preprocessing: Preprocessing = DEFAULT_PREPROCESSING) -> Tensor:
    """[n, *size, channels] as float32 [n, channels, *size]: bytes are normalized, floats stay unchanged."""
    if pixels.dtype != torch.uint8:
        return pixels.movedim(-1, 1).float()
    if _is_done_one_by_one(pixels):
        return _normalize_one_by_one(pixels, preprocessing)
    if len(preprocessing.mean) == 1:
        moved = pixels.movedim(-1, 1).float()
        return moved.sub_(MAX_BYTE * preprocessing.mean[0]).div_(MAX_BYTE * preprocessing.std[0])
    mean, std = (_of_each_column(values, pixels) for values in (preprocessing.mean, preprocessing.std))
    return pixels.flatten(-2).sub(mean).div_(std).view(pixels.shape).movedim(-1, 1)


def _of_each_column(values: Sequence[float], pixels: Tensor) -> Tensor:
    """The value of each channel, in bytes, for a whole row of memory: a loop over three channels would take three
    times as long."""
    in_bytes = torch.tensor([MAX_BYTE * value for value in values], device=pixels.device)
    return in_bytes if len(values) == 1 else in_bytes.repeat(pixels.shape[-2])


def _is_done_one_by_one(pixels: Tensor) -> bool:
    """Whether these are samples of which few fit into a processor's cache. On a GPU, launches would cost more."""
    return pixels.device.type == "cpu" and pixels.dtype == torch.uint8 and pixels.shape[1:].numel() >= LARGE_SAMPLE


def _normalize_one_by_one(
    pixels: Tensor, preprocessing: Preprocessing, *, rows: Tensor | None = None, mirror: Tensor | None = None
) -> Tensor:
    """As `normalize`, with the same bits, of some rows, and mirrored where `mirror` is 1."""
    chosen = range(len(pixels)) if rows is None else rows.tolist()
    flips = [0] * len(chosen) if mirror is None else mirror.tolist()
    mean, std = (_of_each_column(values, pixels) for values in (preprocessing.mean, preprocessing.std))
    # Memory of NumPy, which asks Linux for huge pages: with torch's, page faults would take most of the time.
    normalized = torch.from_numpy(np.empty((len(chosen), *pixels.shape[1:]), np.float32))
    for target, row, is_mirrored in zip(normalized, chosen, flips, strict=True):
        image = pixels[row].flip(-2) if is_mirrored else pixels[row]
        torch.sub(image.flatten(-2), mean, out=target.flatten(-2)).div_(std)
    return normalized.movedim(-1, 1)


def _reflect(position: Tensor, size: int) -> Tensor:
    """Reflect positions outside 0..size-1 at the border."""
    return (size - 1) - ((size - 1) - position.abs()).abs()


def _within_mask(position: Tensor, size: int) -> Tensor:
    """1 for a position in 0..size-1, else 0."""
    return ((position >= 0) & (position < size)).float()


def _cutout_mask(size: int, center: Tensor, shorter: int) -> Tensor:
    """[n, size]: 1 within the square around the centers [n, 1], else 0."""
    side = max(1, int(CUTOUT_FRACTION * shorter))
    return _within_mask(torch.arange(size, device=center.device) - center + side // 2, side)


def _repeat_channels(columns: Tensor, channels: int) -> Tensor:
    """Repeat [n, width] for each channel, as pixels lie in memory: [n, 1, width * channels]."""
    return columns.repeat_interleave(channels, dim=1)[:, None, :]


def undo_normalization(images: Tensor, preprocessing: Preprocessing = DEFAULT_PREPROCESSING) -> Tensor:
    """Bytes again, uint8, of normalized images [n, channels, *size]."""
    axes = (1, -1, *(1 for _ in images.shape[2:]))
    mean, std = (torch.tensor(values).view(axes) for values in (preprocessing.mean, preprocessing.std))
    return ((images * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)
