"""Draws the built-in data set: images or clips of outlines, one outline per class.

Every sample is computed from its number. `data.imbalance` gives the class counts a long tail; no
class is empty.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from train import rng
from train.config.batches import count_splits
from train.config.schema import DataConfig
from train.data.shape import ImageSize, Shape, height_and_width
from train.data.sources.synthetic import long_tail_counts
from train.data.splits import DataSplits, SampleSource

OUTLINE_ANGLES: Final = 720  # entries in the table of an outline's radii
HARMONICS: Final = np.arange(2, 6)  # lobes per turn; 1 would only shift the outline
IMAGES_PER_CHUNK: Final = 512  # drawn at once: about 2 MB per float plane
# How far an outline turns from a clip's first frame to its last.
MIN_TURN_RADIANS, MAX_TURN_RADIANS = np.float32(np.pi / 2), np.float32(np.pi)

Float32Array = npt.NDArray[np.float32]
Int64Array = npt.NDArray[np.int64]
Sides = tuple[int, int]  # height and width


def open_synthetic(data: DataConfig, *_: object) -> DataSplits:
    """The first samples are trained on, the next are for validation, and the last for the test."""
    sizes = count_splits(data.samples, data)
    training, validation = sizes.training, sizes.validation
    shape = height_and_width(data.image_size)
    return DataSplits(
        training=_make_source(data, 0, training),
        validation=_make_source(data, training, validation),
        test=_make_source(data, training + validation, sizes.test) if sizes.test else None,
        classes=tuple(_class_name(data, label) for label in range(data.classes)),
        shape=Shape(channels=3, size=shape if data.frames is None else (data.frames, *shape)),
        mirror=data.frames is None,  # a clip's class is the direction in which its outline turns
    )


def _class_name(data: DataConfig, label: int) -> str:
    if data.frames is None:
        return f"outline-{label}"
    return f"outline-{label // 2}-{'right' if label % 2 else 'left'}"


def _make_source(data: DataConfig, first: int, count: int) -> SyntheticSource:
    numbers = labels(np.arange(first, first + count), data.classes, data.imbalance)
    return SyntheticSource(first, torch.from_numpy(numbers), data.image_size, data.frames)


@dataclass(frozen=True, slots=True)
class SyntheticSource(SampleSource):
    """The samples from number `first` on, of `size` pixels as data.image_size. frames: None for images."""

    first: int
    labels: torch.Tensor
    size: ImageSize
    frames: int | None = None

    def read(self, samples: Int64Array) -> torch.Tensor:
        """Draw them, uint8 [n, *frames, height, width, 3]."""
        labels = self.labels[torch.from_numpy(samples)].numpy()
        return draw_samples(samples + self.first, labels, size=self.size, frames=self.frames)


def draw_samples(
    samples: Int64Array, labels: Int64Array, *, size: ImageSize, frames: int | None = None
) -> torch.Tensor:
    """The samples with these numbers, uint8 [n, height, width, 3]; clips [n, frames, height, width, 3].

    The outlines lie in the central square. A sample depends only on its number and class. Position, turn, size,
    colours, shading and noise do not depend on the class, and no single pixel does: a linear classifier stays near
    chance. In clips two classes share an outline and differ only in the direction in which it turns, so no single
    frame tells them apart.
    """
    outline_labels, outline_indices = np.unique(labels if frames is None else labels // 2, return_inverse=True)
    outlines = np.array([_outline(int(label)) for label in outline_labels], np.float32).reshape(-1, OUTLINE_ANGLES)
    turns = _turn_angles(samples, labels, frames)
    at_once = max(1, IMAGES_PER_CHUNK // (frames or 1))
    chunks = [slice(start, start + at_once) for start in range(0, len(samples) or 1, at_once)]
    sides = height_and_width(size)
    clips = [_draw_chunk(samples[part], outlines[outline_indices[part]], turns[:, part], sides) for part in chunks]
    return torch.cat(clips) if frames else torch.cat(clips).squeeze(1)


def labels(samples: Int64Array, classes: int, imbalance: float = 1.0) -> Int64Array:
    """The class of each of n consecutive samples, int64 [n].

    Without imbalance the classes take turns. With it they have the counts of `long_tail_counts`, evenly
    spread: the samples are ordered by multiples of the golden ratio, and each class takes its share of that order.
    """
    if imbalance == 1:
        return np.asarray(samples % classes)
    spread = np.argsort(samples.astype(np.uint64) * rng.GOLDEN_GAMMA, kind="stable")
    result = np.empty(len(samples), np.int64)
    result[spread] = np.repeat(np.arange(classes), long_tail_counts(len(samples), classes, imbalance))
    return result


def _outline(label: int) -> Float32Array:
    """The class's radius for every angle, around 1."""
    weight = rng.uniform(rng.SYNTHETIC, 0, label, HARMONICS) + 0.1
    phase = 2 * np.pi * rng.uniform(rng.SYNTHETIC, 1, label, HARMONICS)
    angle = np.linspace(0, 2 * np.pi, OUTLINE_ANGLES, endpoint=False)[:, None]
    waves = (weight / weight.sum() * np.cos(HARMONICS * angle + phase)).sum(axis=1)
    return np.asarray(1 + 0.9 * waves, np.float32)


def _turn_angles(samples: Int64Array, labels: Int64Array, frames: int | None) -> Float32Array:
    """How far each sample's outline is turned in each frame, [frames, n, 1, 1].

    An image is turned a little. A clip begins at any angle, and turns left for even classes and right for odd ones.
    """
    if frames is None:
        return ((_random_number(samples, 3) - 0.5) * np.float32(np.pi / 6))[None]
    direction = np.where(labels % 2, np.float32(-1), np.float32(1))[:, None, None]
    total = direction * (MIN_TURN_RADIANS + (MAX_TURN_RADIANS - MIN_TURN_RADIANS) * _random_number(samples, 6))
    start = np.float32(2 * np.pi) * _random_number(samples, 3)
    return np.stack([start + total * np.float32(frame / max(1, frames - 1)) for frame in range(frames)])


def _draw_chunk(samples: Int64Array, outlines: Float32Array, turns: Float32Array, sides: Sides) -> torch.Tensor:
    """uint8 [n, frames, *sides, 3]. A clip's frames differ only in the turn; they share the noise."""
    inside = _pixel_coverage(samples, outlines, turns, sides)[..., None]
    down, right = _pixel_grid(sides)
    shade = right * (_random_number(samples, 4) - 0.5) + down * (_random_number(samples, 5) - 0.5)
    ink, paper = (colour[:, None] for colour in _colors(samples))
    clean = inside * ink + (1 - inside) * paper + 0.3 * shade[:, None, ..., None]
    noisy = clean.astype(np.float32) + _noise(samples, sides)[:, None]
    return torch.from_numpy((np.clip(noisy, 0, 1) * 255).astype(np.uint8))


def _pixel_coverage(samples: Int64Array, outlines: Float32Array, turns: Float32Array, sides: Sides) -> Float32Array:
    """How much of each pixel the shape covers, [n, frames, *sides] in 0..1, edges one pixel soft."""
    down, right = _pixel_grid(sides)
    right = right - 0.4 * (_random_number(samples, 0) - 0.5)
    down = down - 0.4 * (_random_number(samples, 1) - 0.5)
    scale = 0.45 + 0.2 * _random_number(samples, 2)
    angle, distance = np.arctan2(down, right), np.hypot(down, right)
    covered = np.empty((len(samples), len(turns), *sides), np.float32)
    for frame, turn in enumerate(turns):
        angle_indices = ((angle + turn) * np.float32(OUTLINE_ANGLES / 2 / np.pi)).astype(np.int64) % OUTLINE_ANGLES
        radius = np.take_along_axis(outlines, angle_indices.reshape(len(samples), math.prod(sides)), axis=1).reshape(
            angle_indices.shape
        )
        covered[:, frame] = np.clip((scale * radius - distance) * (min(sides) / 2) + 0.5, 0, 1)
    return covered


def _colors(samples: Int64Array) -> tuple[Float32Array, Float32Array]:
    """Ink and paper, [n, 1, 1, 3] each; the ink is brighter in every channel."""
    number = samples[:, None]
    paper = 0.5 * rng.uniform(rng.SYNTHETIC, 2, number, np.arange(3))
    ink = paper + 0.15 + 0.35 * rng.uniform(rng.SYNTHETIC, 3, number, np.arange(3))
    return ink[:, None, None, :], paper[:, None, None, :]


def _noise(samples: Int64Array, sides: Sides) -> Float32Array:
    """Uniform noise with a standard deviation of a tenth of the range, [n, *sides, 3]."""
    numbers = rng.uniform(rng.SYNTHETIC, 4, samples[:, None], np.arange(math.prod(sides) * 3))
    noise: Float32Array = 0.35 * (numbers.reshape(len(samples), *sides, 3) - 0.5)
    return noise


def _pixel_grid(sides: Sides) -> tuple[Float32Array, Float32Array]:
    """Each pixel's coordinates, downwards and to the right: in -1..1 inside of the central square."""
    shorter = min(sides)
    along, across = ((np.arange(side, dtype=np.float32) + 0.5) / (shorter / 2) - side / shorter for side in sides)
    down, right = np.meshgrid(along, across, indexing="ij")
    return down, right


def _random_number(samples: Int64Array, which: int) -> Float32Array:
    """The sample's random number from the stream `which`, [n, 1, 1]."""
    return rng.uniform(rng.SYNTHETIC, 5, which, samples)[:, None, None]
