"""Opens the training and validation splits of the data source that `data.name` names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import torch

from train.config import batches, schema
from train.config.schema import DataConfig
from train.data import arrays, custom, decode, image_folder, synthetic, torchvision_sets
from train.data.shape import Shape
from train.data.splits import DataSource, DataSplits, SampleIndices

__all__ = ["DataSource", "DataSplits", "SampleIndices", "open_splits"]


def open_splits(data: DataConfig) -> DataSplits:
    """List both sides, reading no more than a few images.

    Raises:
        Failure: NO_INPUT or DATA, naming the folder, file or sample; USAGE for what the config itself rules out.
    """
    return OPENERS.get(data.name, custom.open_custom)(data)  # any other name is package.module:factory


def _open_synthetic(data: DataConfig) -> DataSplits:
    held_out = batches.num_validation_samples(data.samples, data.val_fraction)
    training = data.samples - held_out
    shape = (data.image_size, data.image_size)
    return DataSplits(
        training=_synthetic_source(data, 0, training),
        held_out=_synthetic_source(data, training, held_out),
        classes=tuple(_synthetic_class_name(data, label) for label in range(data.classes)),
        shape=Shape(channels=3, size=shape if data.frames is None else (data.frames, *shape)),
        mirror=data.frames is None,  # a clip's class is the way that its outline turns
    )


def _synthetic_class_name(data: DataConfig, label: int) -> str:
    if data.frames is None:
        return f"outline-{label}"
    return f"outline-{label // 2}-{'right' if label % 2 else 'left'}"


def _synthetic_source(data: DataConfig, first: int, count: int) -> synthetic.SyntheticSource:
    labels = synthetic.labels(np.arange(first, first + count), data.classes, data.imbalance)
    return synthetic.SyntheticSource(first, torch.from_numpy(labels), data.image_size, data.frames)


def _open_image_folder(data: DataConfig) -> DataSplits:
    found = image_folder.list_splits(data)
    return DataSplits(
        training=found.training,
        held_out=found.held_out,
        classes=found.classes,
        shape=Shape(channels=3, size=(data.image_size, data.image_size)),
        notes=found.notes,
        warnings=(
            *found.warnings,
            *decode.bit_depth_warnings(decode.highest_values(found.training.paths), f"data.root {data.root}"),
        ),
    )


OPENERS: Final[Mapping[str, Callable[[DataConfig], DataSplits]]] = {
    schema.SYNTHETIC_SOURCE: _open_synthetic,
    schema.FOLDER_SOURCE: _open_image_folder,
    **dict.fromkeys(schema.PUBLISHED_SOURCES, torchvision_sets.open_torchvision_set),
    **dict.fromkeys(schema.ARRAY_SOURCES, arrays.open_arrays),
}
