"""From the config to the images: what is trained on, what is held out, and the names of the classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from train import batches, folder, synthetic
from train.config import Data

Samples = npt.NDArray[np.int64]


class Source(Protocol):
    """Images by number, without randomness. Sent to worker processes, so it holds paths rather than pixels."""

    @property
    def labels(self) -> Tensor:
        """int64 [count]."""

    def read(self, samples: Samples) -> Tensor:
        """uint8 [n, size, size, 3]. Raises Failure (DATA, NO_INPUT) naming the image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sets:
    """Both sides of the data. held_out may be empty (data.val_fraction: 0)."""

    training: Source
    held_out: Source
    classes: tuple[str, ...]

    def pixels(self, size: int) -> int:
        """Bytes that all images take as uint8."""
        return (len(self.training.labels) + len(self.held_out.labels)) * size * size * 3


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
    )


def _drawn(data: Data, first: int, count: int) -> Drawn:
    labels = synthetic.labels(np.arange(first, first + count), data.classes)
    return Drawn(first=first, labels=torch.from_numpy(labels), classes=data.classes, size=data.image_size)


def _folder(data: Data) -> Sets:
    training, held_out, classes = folder.find(data)
    return Sets(training=training, held_out=held_out, classes=classes)


KINDS: Final[Mapping[str, Callable[[Data], Sets]]] = {"synthetic": _synthetic, "folder": _folder}
