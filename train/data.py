"""From the config to the images: what is trained on, what is held out, and the names of the classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from train import batches, folder, synthetic
from train.config import Data
from train.shape import Shape

Samples = npt.NDArray[np.int64]


class Source(Protocol):
    """Images by number, without randomness. Sent to worker processes, so it holds paths rather than pixels."""

    @property
    def labels(self) -> Tensor:
        """int64 [count]."""

    def read(self, samples: Samples) -> Tensor:
        """[n, *shape.stored], bytes (uint8) or float32. Raises Failure (DATA, NO_INPUT) naming the image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sets:
    """Both sides of the data. held_out may be empty (data.val_fraction: 0).

    notes: what the user should know of how they came about.
    """

    training: Source
    held_out: Source
    classes: tuple[str, ...]
    shape: Shape
    notes: tuple[str, ...] = ()

    @property
    def numbers(self) -> int:
        """How many numbers all samples are: bytes, where they are read as uint8."""
        return (len(self.training.labels) + len(self.held_out.labels)) * math.prod(self.shape.stored)


@dataclass(frozen=True, slots=True)
class Drawn:
    """The embedded images from number `first` on."""

    first: int
    labels: Tensor
    classes: int
    size: int

    def read(self, samples: Samples) -> Tensor:
        """Draw them."""
        return synthetic.draw(samples + self.first, classes=self.classes, size=self.size)


def open_sets(data: Data) -> Sets:
    """List both sides without reading an image.

    Raises:
        Failure: NO_INPUT or DATA, naming the folder.
    """
    return KINDS[data.name](data)


def _synthetic(data: Data) -> Sets:
    held_out = batches.held_out(data.samples, data.val_fraction)
    training = data.samples - held_out
    return Sets(
        training=_drawn(data, 0, training),
        held_out=_drawn(data, training, held_out),
        classes=tuple(f"outline-{label}" for label in range(data.classes)),
        shape=_square(data),
    )


def _drawn(data: Data, first: int, count: int) -> Drawn:
    labels = synthetic.labels(np.arange(first, first + count), data.classes)
    return Drawn(first=first, labels=torch.from_numpy(labels), classes=data.classes, size=data.image_size)


def _folder(data: Data) -> Sets:
    found = folder.find(data)
    return Sets(
        training=found.training,
        held_out=found.held_out,
        classes=found.classes,
        shape=_square(data),
        notes=found.notes,
    )


def _square(data: Data) -> Shape:
    return Shape(channels=3, size=(data.image_size, data.image_size))


KINDS: Final[Mapping[str, Callable[[Data], Sets]]] = {"synthetic": _synthetic, "folder": _folder}
