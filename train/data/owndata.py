"""From the user's own factory to both sides of the data: Sets as they are, or a pair of datasets, checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from entrypoint import ExitCode, Failure
from train import plugin
from train.data import apart, depth, items, labels, tensors
from train.data.folder import Files
from train.data.items import Items
from train.data.sets import Samples, Sets, Source
from train.data.shape import Shape
from train.settings.config import Data

SIDES: Final = ("training", "held-out")
CONTRACT: Final = "train.data.sets.Sets, or (training, held_out): datasets with len() whose items are (image, label)"


def find(data: Data) -> Sets:
    """Call the factory with the data section of the config, and take what it returns.

    Raises:
        Failure: USAGE for a factory that cannot be called or fails, DATA for what it returns, naming the item.
    """
    made = plugin.call(data.name, "data.name", data)
    try:
        return _as_sets(made, data)
    except (Failure, MemoryError):
        raise
    except Exception as error:  # in what the user's data set does: its len(), its read()
        raise plugin.failed(f"data.name {data.name}: what it returned failed", error) from error


def _as_sets(made: Any, data: Data) -> Sets:
    if isinstance(made, Sets):
        return _checked(made, data)
    if not (isinstance(made, (tuple, list)) and len(made) == 2):
        raise _not_as_agreed(data, type(made).__name__)
    if made[0] is None:
        raise _not_as_agreed(data, "(None, ...)")
    _refuse_others(made, data)
    made, shared = apart.kept_apart(made, lambda dataset, row: dataset[row % len(dataset)])
    training, others = _items(made[0], data, SIDES[0]), None if made[1] is None else _items(made[1], data, SIDES[1])
    if others and others.first != training.first:
        raise _not_as_agreed(data, "training and held-out samples of different shapes or types")
    names = getattr(made[0], "classes", None)
    claimed = len(names) if names else tensors.claimed_classes(data)
    count = labels.count_classes(data.name, claimed, training.labels, others.labels if others else None)
    if others is None:
        chosen = tensors.held_out_part(data, training.labels)
        training, others = items.part(training, ~chosen), items.part(training, chosen)
    shape, kind = training.first or ((), torch.uint8)
    changing = items.changing(training)
    warnings = () if changing is None else (_changing(data, changing),)
    deep = depth.warnings(items.depths(training), data.name)
    apart.renew(made)
    return Sets(
        training=training,
        held_out=others,
        classes=tuple(map(str, names or range(count))),
        shape=Shape(channels=shape[-1], size=shape[:-1]),
        floats=kind.is_floating_point,
        warnings=(*warnings, *deep),
        shared=shared,
    )


def _changing(data: Data, row: int) -> str:
    return (
        f"{data.name}: item {row} is not the same when it is read again (random transforms?). Kept in memory, items "
        "are read once and stay so in all epochs; data.loader=workers reads them anew, and a run that goes on or has "
        "other ranks then sees other ones. Take what is random out: data.augment moves images by keys"
    )


def _refuse_others(made: Sequence[Any], data: Data) -> None:
    for dataset, side in zip(made, SIDES, strict=True):
        if dataset is not None and not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise _not_as_agreed(data, f"{side}: {type(dataset).__name__}, without len() or without [ ]")


def _items(dataset: Any, data: Data, side: str) -> Items:
    name = f"{data.name}, {side} data:"
    if not (count := len(dataset)):
        raise _not_as_agreed(data, f"{side}: a {type(dataset).__name__} without items")
    found = labels.checked_labels(_labels(dataset, name), name)
    if len(found) != count:
        raise _not_as_agreed(data, f"{side}: {count} items, and {len(found)} labels in .targets or .labels")
    return items.open_items(dataset, found, data.image_size, name)


def _labels(dataset: Any, name: str) -> Tensor:
    """As the dataset lists them, or, where it does not, out of every item."""
    inner, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if inner is not None and indices is not None:  # a torch.utils.data.Subset
        return _labels(inner, name)[torch.as_tensor(indices)]
    listed = next((found for key in ("targets", "labels") if (found := getattr(dataset, key, None)) is not None), None)
    if listed is None:
        listed = [items.item(dataset, row, name)[1] for row in range(len(dataset))]
    try:
        return torch.as_tensor(np.asarray(listed))
    except (TypeError, ValueError, RuntimeError) as error:
        raise labels.wrong(name, "labels are not integers", str(error), "one integer for each item") from error


def _checked(made: Sets, data: Data) -> Sets:
    """The user's own Sets: labels within the classes, and a first sample of the promised shape."""
    for side in (made.training, made.held_out):
        if not (isinstance(getattr(side, "labels", None), Tensor) and callable(getattr(side, "read", None))):
            raise _not_as_agreed(data, f"a {type(side).__name__} without a tensor of labels, or without read()")
        found = labels.checked_labels(side.labels, data.name)
        if len(found) and int(found.max()) >= len(made.classes):
            raise _not_as_agreed(data, f"label {int(found.max())}, and {len(made.classes)} classes")
    if not len(made.training.labels):
        raise _not_as_agreed(data, "no training samples")
    sides, shared = apart.kept_apart(
        [made.training, made.held_out], lambda side, row: side.read(np.array([row % len(side.labels)]))
    )
    training, held_out = (
        side
        if isinstance(side, Files)
        else Agreed(side, labels.checked_labels(side.labels, data.name), made.shape, data)
        for side in sides
    )
    first = training.read(np.arange(1))
    apart.renew(sides)
    return replace(
        made,
        training=training,
        held_out=held_out,
        floats=first.is_floating_point(),
        shared=shared,
    )


@dataclass(frozen=True, slots=True)
class Agreed:
    """A source of the user's own, held to what it says in every read: one row too few would be given to all samples."""

    source: Source
    labels: Tensor
    shape: Shape
    data: Data

    def read(self, samples: Samples) -> Tensor:
        """As `Source.read`. Raises Failure: DATA for other shapes and types, USAGE for an error in the user's code."""
        try:
            read = self.source.read(samples)
        except (Failure, MemoryError):
            raise
        except Exception as error:
            raise plugin.failed(f"data.name {self.data.name}: reading samples failed", error) from error
        if not isinstance(read, Tensor):
            raise _not_as_agreed(self.data, f"samples as {type(read).__name__}")
        if tuple(read.shape) != (len(samples), *self.shape.stored) or read.dtype not in (torch.uint8, torch.float32):
            rows = (
                f"{read.shape[0]} samples of {items.told(tuple(read.shape[1:]), read.dtype)}"
                if read.dim()
                else "one number"
            )
            found = f"{rows} for {len(samples)}, and the shape {self.shape}"
            raise _not_as_agreed(self.data, found)
        if not read.isfinite().all():
            raise _not_as_agreed(
                self.data, f"NaN or infinity in one of the samples {', '.join(map(str, samples[:5]))}, ..."
            )
        return read


def _not_as_agreed(data: Data, found: str) -> Failure:
    what = f"data.name {data.name} returned something else than a data set"
    return Failure(what, found=found, expected=CONTRACT, fix="return that", code=ExitCode.DATA)
