"""From a number to an image or a clip: the embedded data set, one outline per class, drawn anew in every sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch

from train import keyed
from train.data import mixture

ANGLES: Final = 720  # entries of an outline's table
HARMONICS: Final = np.arange(2, 6)  # lobes per turn; 1 would only shift the outline
CHUNK: Final = 512  # images drawn at once: some 2 MB per float plane
# What an outline turns by from a clip's first frame to its last, in radians.
LEAST_TURN, MOST_TURN = np.float32(np.pi / 2), np.float32(np.pi)

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Drawn:
    """The embedded samples from number `first` on. Sized `size` x `size`; frames: None for images."""

    first: int
    labels: torch.Tensor
    size: int
    frames: int | None = None

    def read(self, samples: Numbers) -> torch.Tensor:
        """Draw them, uint8 [n, *frames, size, size, 3]."""
        labels = self.labels[torch.from_numpy(samples)].numpy()
        return draw(samples + self.first, labels, size=self.size, frames=self.frames)


def draw(samples: Numbers, labels: Numbers, *, size: int, frames: int | None = None) -> torch.Tensor:
    """The samples with these numbers, uint8 [n, size, size, 3]; clips [n, frames, size, size, 3].

    A sample depends on its number and class alone. What says nothing about the class: place, turn, size, colours,
    shading and noise. No single pixel helps: a linear classifier stays near chance. In clips two classes share an
    outline, and only the way it turns tells them apart: no single frame does.
    """
    seen, place = np.unique(labels if frames is None else labels // 2, return_inverse=True)
    outlines = np.array([_outline(int(label)) for label in seen], np.float32).reshape(-1, ANGLES)
    turns = _turns(samples, labels, frames)
    at_once = max(1, CHUNK // (frames or 1))
    chunks = [slice(start, start + at_once) for start in range(0, len(samples) or 1, at_once)]
    clips = [_draw(samples[part], outlines[place[part]], turns[:, part], size) for part in chunks]
    return torch.cat(clips) if frames else torch.cat(clips).squeeze(1)


def labels(samples: Numbers, classes: int, imbalance: float = 1.0) -> Numbers:
    """The class of each sample in a run of samples that follow each other, int64 [n].

    Without imbalance all classes come in turn. With it each run has the counts of `mixture.counts`, evenly spread: the
    golden ratio's multiples lay the samples out, and the classes take their shares of them.
    """
    if imbalance == 1:
        return np.asarray(samples % classes)
    spread = np.argsort(samples.astype(np.uint64) * keyed.GOLDEN, kind="stable")
    found = np.empty(len(samples), np.int64)
    found[spread] = np.repeat(np.arange(classes), mixture.counts(len(samples), classes, imbalance))
    return found


def _outline(label: int) -> Floats:
    """The class's radius for every angle, around 1."""
    weight = keyed.uniform(keyed.SYNTHETIC, 0, label, HARMONICS) + 0.1
    phase = 2 * np.pi * keyed.uniform(keyed.SYNTHETIC, 1, label, HARMONICS)
    angle = np.linspace(0, 2 * np.pi, ANGLES, endpoint=False)[:, None]
    waves = (weight / weight.sum() * np.cos(HARMONICS * angle + phase)).sum(axis=1)
    return np.asarray(1 + 0.9 * waves, np.float32)


def _turns(samples: Numbers, labels: Numbers, frames: int | None) -> Floats:
    """How far each sample's outline is turned in each frame, [frames, n, 1, 1]: an image a little, a clip from anywhere
    on, to the left for even classes and to the right for odd ones."""
    if frames is None:
        return ((_number(samples, 3) - 0.5) * np.float32(np.pi / 6))[None]
    way = np.where(labels % 2, np.float32(-1), np.float32(1))[:, None, None]
    whole = way * (LEAST_TURN + (MOST_TURN - LEAST_TURN) * _number(samples, 6))
    start = np.float32(2 * np.pi) * _number(samples, 3)
    return np.stack([start + whole * np.float32(frame / max(1, frames - 1)) for frame in range(frames)])


def _draw(samples: Numbers, outlines: Floats, turns: Floats, size: int) -> torch.Tensor:
    """uint8 [n, frames, size, size, 3]. A clip's frames share all but the turn, noise included."""
    inside = _inside(samples, outlines, turns, size)[..., None]
    down, right = _grid(size)
    shade = right * (_number(samples, 4) - 0.5) + down * (_number(samples, 5) - 0.5)
    ink, paper = (colour[:, None] for colour in _colours(samples))
    clean = inside * ink + (1 - inside) * paper + 0.3 * shade[:, None, ..., None]
    noisy = clean.astype(np.float32) + _noise(samples, size)[:, None]
    return torch.from_numpy((np.clip(noisy, 0, 1) * 255).astype(np.uint8))


def _inside(samples: Numbers, outlines: Floats, turns: Floats, size: int) -> Floats:
    """How much of each pixel the shape covers, [n, frames, size, size] in 0..1, edges one pixel soft."""
    down, right = _grid(size)
    right = right - 0.4 * (_number(samples, 0) - 0.5)
    down = down - 0.4 * (_number(samples, 1) - 0.5)
    scale = 0.45 + 0.2 * _number(samples, 2)
    angle, distance = np.arctan2(down, right), np.hypot(down, right)
    covered = np.empty((len(samples), len(turns), size, size), np.float32)
    for frame, turn in enumerate(turns):
        place = ((angle + turn) * np.float32(ANGLES / 2 / np.pi)).astype(np.int64) % ANGLES
        radius = np.take_along_axis(outlines, place.reshape(len(samples), size * size), axis=1).reshape(place.shape)
        covered[:, frame] = np.clip((scale * radius - distance) * (size / 2) + 0.5, 0, 1)
    return covered


def _colours(samples: Numbers) -> tuple[Floats, Floats]:
    """Ink and paper, [n, 1, 1, 3] each: the ink the brighter one in every channel."""
    number = samples[:, None]
    paper = 0.5 * keyed.uniform(keyed.SYNTHETIC, 2, number, np.arange(3))
    ink = paper + 0.15 + 0.35 * keyed.uniform(keyed.SYNTHETIC, 3, number, np.arange(3))
    return ink[:, None, None, :], paper[:, None, None, :]


def _noise(samples: Numbers, size: int) -> Floats:
    """Uniform, a tenth of the range as its standard deviation, [n, size, size, 3]."""
    numbers = keyed.uniform(keyed.SYNTHETIC, 4, samples[:, None], np.arange(size * size * 3))
    noise: Floats = 0.35 * (numbers.reshape(len(samples), size, size, 3) - 0.5)
    return noise


def _grid(size: int) -> tuple[Floats, Floats]:
    """Each pixel's place in -1..1, downwards and to the right."""
    line = (np.arange(size, dtype=np.float32) + 0.5) / (size / 2) - 1
    down, right = np.meshgrid(line, line, indexing="ij")
    return down, right


def _number(samples: Numbers, which: int) -> Floats:
    """The sample's own random number of this name, [n, 1, 1]."""
    return keyed.uniform(keyed.SYNTHETIC, 5, which, samples)[:, None, None]
