"""From a number to an image: the embedded data set, one outline per class, drawn differently in every sample."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from train import keyed

ANGLES: Final = 720  # entries of an outline's table
HARMONICS: Final = np.arange(2, 6)  # lobes per turn; 1 would only shift the outline
CHUNK: Final = 512  # samples drawn at once: some 2 MB per float plane

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]


def draw(samples: Numbers, *, classes: int, size: int) -> torch.Tensor:
    """The samples with these numbers, uint8 [n, size, size, 3].

    A sample depends on its number alone: its class (`labels`), and what says nothing about the class: place, turn,
    size, colours, shading and noise. No single pixel helps: a linear classifier stays near chance.
    """
    seen, place = np.unique(labels(samples, classes), return_inverse=True)
    outlines = np.array([_outline(int(label)) for label in seen], np.float32).reshape(-1, ANGLES)
    chunks = [slice(start, start + CHUNK) for start in range(0, len(samples) or 1, CHUNK)]
    images = [_draw(samples[part], outlines[place[part]], size) for part in chunks]
    return torch.cat(images)


def labels(samples: Numbers, classes: int) -> Numbers:
    """Each sample's class, int64 [n]: all classes equally often in any run of samples."""
    return np.asarray(samples % classes)


def _outline(label: int) -> Floats:
    """The class's radius for every angle, around 1."""
    weight = keyed.uniform(keyed.SYNTHETIC, 0, label, HARMONICS) + 0.1
    phase = 2 * np.pi * keyed.uniform(keyed.SYNTHETIC, 1, label, HARMONICS)
    angle = np.linspace(0, 2 * np.pi, ANGLES, endpoint=False)[:, None]
    waves = (weight / weight.sum() * np.cos(HARMONICS * angle + phase)).sum(axis=1)
    return np.asarray(1 + 0.9 * waves, np.float32)


def _draw(samples: Numbers, outlines: Floats, size: int) -> torch.Tensor:
    inside = _inside(samples, outlines, size)[..., None]
    down, right = _grid(size)
    shade = right * (_number(samples, 4) - 0.5) + down * (_number(samples, 5) - 0.5)
    ink, paper = _colours(samples)
    clean = inside * ink + (1 - inside) * paper + 0.3 * shade[..., None]
    return _with_noise(clean.astype(np.float32), samples)


def _inside(samples: Numbers, outlines: Floats, size: int) -> Floats:
    """How much of each pixel the shape covers, [n, size, size] in 0..1, edges one pixel soft."""
    down, right = _grid(size)
    right = right - 0.4 * (_number(samples, 0) - 0.5)
    down = down - 0.4 * (_number(samples, 1) - 0.5)
    scale = 0.45 + 0.2 * _number(samples, 2)
    turn = (_number(samples, 3) - 0.5) * np.float32(np.pi / 6)
    place = ((np.arctan2(down, right) + turn) * np.float32(ANGLES / 2 / np.pi)).astype(np.int64) % ANGLES
    radius = np.take_along_axis(outlines, place.reshape(len(samples), size * size), axis=1).reshape(place.shape)
    covered: Floats = np.clip((scale * radius - np.hypot(down, right)) * (size / 2) + 0.5, 0, 1)
    return covered


def _colours(samples: Numbers) -> tuple[Floats, Floats]:
    """Ink and paper, [n, 1, 1, 3] each: the ink the brighter one in every channel."""
    number = samples[:, None]
    paper = 0.5 * keyed.uniform(keyed.SYNTHETIC, 2, number, np.arange(3))
    ink = paper + 0.15 + 0.35 * keyed.uniform(keyed.SYNTHETIC, 3, number, np.arange(3))
    return ink[:, None, None, :], paper[:, None, None, :]


def _with_noise(clean: Floats, samples: Numbers) -> torch.Tensor:
    """Uniform noise with a tenth of the range as its standard deviation, then bytes."""
    number = samples[:, None]
    noise = keyed.uniform(keyed.SYNTHETIC, 4, number, np.arange(math.prod(clean.shape[1:]))).reshape(clean.shape)
    noisy = clean + 0.35 * (noise - 0.5)
    pixels = (np.clip(noisy, 0, 1) * 255).astype(np.uint8)
    return torch.from_numpy(pixels)


def _grid(size: int) -> tuple[Floats, Floats]:
    """Each pixel's place in -1..1, downwards and to the right."""
    line = (np.arange(size, dtype=np.float32) + 0.5) / (size / 2) - 1
    down, right = np.meshgrid(line, line, indexing="ij")
    return down, right


def _number(samples: Numbers, which: int) -> Floats:
    """The sample's own random number of this name, [n, 1, 1]."""
    return keyed.uniform(keyed.SYNTHETIC, 5, which, samples)[:, None, None]
