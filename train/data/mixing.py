"""Mixes each training image with its neighbour in the global batch (mixup and CutMix), and says how their labels mix.

Zhang et al.: mixup (2018); Yun et al.: CutMix (2019). Neighbours are the samples 2k and 2k + 1 of the global batch. Its
order is random, so a neighbour is a random sample; both lie in one micro batch of even size, whatever the number of
ranks. Each image has its own share, where the papers draw one for a whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from train import rng
from train.config.augmentations import Step
from train.data.batch import Batch

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
# The streams of the random numbers: see `operations.STREAMS_PER_OPERATION`. One stream chooses among the operations.
FIRST_STREAMS: Final[Mapping[str, int]] = {"mixup": 64 * 10, "cutmix": 64 * 11}
CHOICE_STREAM: Final = 64 * 12
BETA_GRID: Final = 4097  # points of the table of a Beta distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class MixDraws:
    """How n images are mixed. blend: the share of the own pixels, [n]; 1 for no mixup.

    top, bottom, left, right: the box that the neighbour fills, int64 [n]; empty for no CutMix. share: of the own label.
    """

    blend: FloatArray
    top: Int64Array
    bottom: Int64Array
    left: Int64Array
    right: Int64Array
    share: FloatArray


def draw_mix(steps: Sequence[Step], keys: Int64Array, *, size: tuple[int, int], seed: int, epoch: int) -> MixDraws:
    """Draw for each sample which of the operations acts, if any, and its share. size: (height, width)."""
    (height, width), count = size, len(keys)
    choice = (rng.uniform(rng.AUGMENT, seed, epoch, CHOICE_STREAM, keys) * len(steps)).astype(np.int64)
    blend, share, half = np.ones(count), np.ones(count), np.zeros(count)
    center = np.zeros((2, count))
    for number, step in enumerate(steps):
        streams = FIRST_STREAMS[step.name] + np.arange(4)[:, None]
        acts, beta, *drawn_center = rng.uniform(rng.AUGMENT, seed, epoch, streams, keys).astype(np.float64)
        chosen = (choice == number) & (acts < step.arguments["p"])
        drawn = inverse_beta(beta, float(step.arguments["alpha"]))
        if step.name == "mixup":
            blend = share = np.where(chosen, drawn, blend)
        else:
            half = np.where(chosen, 0.5 * np.sqrt(1 - drawn), half)
            center = np.where(chosen, np.stack(drawn_center), center)
    row, column = (center[0] * height).astype(np.int64), (center[1] * width).astype(np.int64)
    half_height, half_width = (half * height).astype(np.int64), (half * width).astype(np.int64)
    top, bottom = np.clip(row - half_height, 0, height), np.clip(row + half_height, 0, height)
    left, right = np.clip(column - half_width, 0, width), np.clip(column + half_width, 0, width)
    area = (bottom - top) * (right - left)
    share = np.where(area > 0, 1 - area / (height * width), share)
    return MixDraws(blend=blend, top=top, bottom=bottom, left=left, right=right, share=share)


def inverse_beta(numbers: npt.NDArray[Any], alpha: float) -> FloatArray:
    """Numbers that are even in [0, 1) as numbers of the Beta(alpha, alpha) distribution."""
    lower = numbers < 0.5
    position = np.interp(np.where(lower, numbers, 1 - numbers), *_beta_table(alpha))
    value = position ** (1 / alpha)
    return np.where(lower, value, 1 - value)


@lru_cache(maxsize=8)
def _beta_table(alpha: float) -> tuple[FloatArray, FloatArray]:
    """The distribution function of Beta(alpha, alpha) up to 1/2, and x**alpha, in which it has no pole at 0."""
    value = 0.5 * np.linspace(0, 1, BETA_GRID) ** (1 / min(alpha, 1))
    position, density = value**alpha, (1 - value) ** (alpha - 1)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) * np.diff(position))])
    return 0.5 * below / below[-1], position


def mix_images(images: Tensor, draws: MixDraws) -> Tensor:
    """Mix float images [n, channels, (frames,) height, width] with their neighbours; n is even."""
    other = swap_neighbours(images)
    blended = np.flatnonzero(draws.blend < 1)
    filled = np.flatnonzero((draws.bottom > draws.top) & (draws.right > draws.left))
    shape = (-1, *[1] * (images.ndim - 1))
    mixed = images.clone()
    if len(blended):
        rows = torch.from_numpy(blended).to(images.device)
        own = torch.from_numpy(draws.blend[blended].astype(np.float32)).to(images.device).view(shape)
        mixed[rows] = images[rows] * own + other[rows] * (1 - own)
    for row in filled:
        box = (..., slice(draws.top[row], draws.bottom[row]), slice(draws.left[row], draws.right[row]))
        mixed[row][box] = other[row][box]
    return mixed


def mix_batch(batch: Batch, draws: MixDraws) -> None:
    """Mix the images of a batch, and write `other`, the neighbours' labels, and `share` [n], of the own label."""
    batch["image"] = mix_images(batch["image"], draws)
    batch["other"] = swap_neighbours(batch["label"])
    batch["share"] = torch.from_numpy(draws.share.astype(np.float32)).to(batch["label"].device)


def swap_neighbours(batch: Tensor) -> Tensor:
    """The batch [n, ...] with 2k and 2k + 1 exchanged."""
    return batch.index_select(0, torch.arange(len(batch), device=batch.device) ^ 1)
