"""The entries of `npz` and `tensor`: array files, whose headers tell how many samples there are."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from train.config.batches import num_validation_samples
from train.config.schema import DataConfig
from train.data import array_files
from train.data.registry import DataSource, DataSummary

if TYPE_CHECKING:
    from train.data.splits import DataSplits


def open_npz(data: DataConfig) -> DataSplits:
    from train.data import arrays  # torch

    return arrays.open_arrays(data, channels_first=False)


def open_tensor(data: DataConfig) -> DataSplits:
    from train.data import arrays  # torch

    return arrays.open_arrays(data, channels_first=True)


def count(data: DataConfig) -> int | None:
    return describe(data).training


def describe(data: DataConfig) -> DataSummary:
    seen = array_files.read_array_summary(Path(data.root), data.name)
    if seen is None:  # a .pt file, whose header is a pickle
        return DataSummary(description=f"{data.name} ({data.root}), its arrays are known at the start")
    sizes = _split_sizes(seen, data.val_fraction)
    return DataSummary(
        description=f"{data.name} ({data.root}), images {list(seen.shape)}", training=sizes["training"], facts=sizes
    )


def _split_sizes(seen: array_files.ArraySummary, fraction: float) -> dict[str, int]:
    """By the names that checkpoints use; without a validation split whose size only its data tells."""
    images = seen.shape[0] if seen.shape else 0
    if seen.validation:
        return {"training": images} | ({} if seen.validation_images is None else {"held_out": seen.validation_images})
    validation = num_validation_samples(images, fraction)
    return {"training": images - validation, "held_out": validation}


def has_validation(data: DataConfig) -> bool:
    seen = array_files.read_array_summary(Path(data.root), data.name)
    return seen is not None and seen.validation


KEYS: Final = frozenset({"root", "val_fraction"})

NPZ: Final = DataSource(
    open=open_npz, count=count, describe=describe, has_validation=has_validation, keys=KEYS, origin="files"
)
TENSOR: Final = DataSource(
    open=open_tensor, count=count, describe=describe, has_validation=has_validation, keys=KEYS, origin="files"
)
