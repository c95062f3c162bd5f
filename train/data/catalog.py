"""From the config to the samples: what is trained on, what is held out, and the names of the classes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import torch

from train.data import arrays, depth, folder, owndata, published, synthetic
from train.data.sets import Samples, Sets, Source
from train.data.shape import Shape
from train.settings import batches, names
from train.settings.config import Data

__all__ = ["Samples", "Sets", "Source", "open_sets"]


def open_sets(data: Data) -> Sets:
    """List both sides, reading no more than a few images.

    Raises:
        Failure: NO_INPUT or DATA, naming the folder, file or sample; USAGE for what the config itself rules out.
    """
    return KINDS.get(data.name, owndata.find)(data)  # any other name is package.module:factory


def _synthetic(data: Data) -> Sets:
    held_out = batches.held_out(data.samples, data.val_fraction)
    training = data.samples - held_out
    shape = (data.image_size, data.image_size)
    return Sets(
        training=_drawn(data, 0, training),
        held_out=_drawn(data, training, held_out),
        classes=tuple(_synthetic_name(data, label) for label in range(data.classes)),
        shape=Shape(channels=3, size=shape if data.frames is None else (data.frames, *shape)),
        mirror=data.frames is None,  # a clip's class is the way that its outline turns
    )


def _synthetic_name(data: Data, label: int) -> str:
    if data.frames is None:
        return f"outline-{label}"
    return f"outline-{label // 2}-{'right' if label % 2 else 'left'}"


def _drawn(data: Data, first: int, count: int) -> synthetic.Drawn:
    labels = synthetic.labels(np.arange(first, first + count), data.classes, data.imbalance)
    return synthetic.Drawn(first, torch.from_numpy(labels), data.image_size, data.frames)


def _folder(data: Data) -> Sets:
    found = folder.find(data)
    return Sets(
        training=found.training,
        held_out=found.held_out,
        classes=found.classes,
        shape=Shape(channels=3, size=(data.image_size, data.image_size)),
        notes=found.notes,
        warnings=(*found.warnings, *depth.warnings(depth.of_files(found.training.paths), f"data.root {data.root}")),
    )


KINDS: Final[Mapping[str, Callable[[Data], Sets]]] = {
    names.SYNTHETIC: _synthetic,
    names.FOLDER: _folder,
    **dict.fromkeys(names.PUBLISHED, published.find),
    **dict.fromkeys(names.ARRAYS, arrays.find),
}
