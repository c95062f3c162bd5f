"""From plain tensors of images and labels to one side of a data set, checked: axes, types, numbers and lengths."""

from __future__ import annotations

import torch
from torch import Tensor

from train.data import split, stored
from train.data.axes import laid_out
from train.data.labels import checked_labels, count_classes, kind, wrong
from train.data.sets import Sets
from train.data.shape import Shape
from train.data.stored import Stored
from train.settings import batches
from train.settings.config import Data


def side(images: Tensor, labels: Tensor, name: str, *, channels_first: bool) -> Stored:
    """One side of the data. `name`: of the file, for errors.

    Raises:
        Failure: DATA, saying what was found and how to write it instead.
    """
    numbers = checked_labels(labels, name)
    if len(images) != len(numbers):
        raise wrong(name, "images and labels are not of one length", f"{len(images)} images, {len(numbers)} labels")
    if images.numel() == 0:
        raise wrong(name, "there are no samples", f"images {list(images.shape)}", "at least one")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        fix = "scale them to 0..255 and save them as uint8, or to about -2..2 and save them as float32"
        raise wrong(name, "images of this type cannot be used", kind(images), "uint8 or a float", fix)
    return stored.whole(laid_out(images, name, channels_first=channels_first), numbers, name)


def claimed_classes(data: Data) -> int | None:
    """data.classes, where it is not its default, which is no claim."""
    return data.classes if data.classes != Data().classes else None


def held_out_part(data: Data, labels: Tensor) -> Tensor:
    """Which samples data.val_fraction sets aside, bool [N]: the same share of every class."""
    count = batches.held_out(len(labels), data.val_fraction)
    return torch.from_numpy(split.held_out_samples(labels.numpy(), count))


def sets(data: Data, training: Stored, held_out: Stored | None) -> Sets:
    """Both sides; where nothing is held out, data.val_fraction of every class is.

    Raises:
        Failure: DATA, where the sides do not fit together, or not to the config.
    """
    shape = _shape(training)
    if held_out is not None:
        _same_kind(training, held_out)
    others = held_out.labels if held_out else None
    classes = count_classes(training.name, claimed_classes(data), training.labels, others)
    _refuse_other_size(data, shape, training.name)
    if held_out is None:
        chosen = held_out_part(data, training.labels)
        training, held_out = stored.part(training, ~chosen), stored.part(training, chosen)
    names = tuple(str(label) for label in range(classes))
    note = f"{training.name} holds {'clips' if len(shape.size) == 3 else 'images'} of {shape}, {_told(training.pixels)}"
    return Sets(
        training=training,
        held_out=held_out,
        classes=names,
        shape=shape,
        notes=(note,),
        floats=training.pixels.is_floating_point(),
    )


def _same_kind(one: Stored, other: Stored) -> None:
    mine, theirs = (f"{_shape(side)}, {_told(side.pixels)}" for side in (one, other))
    if mine != theirs:
        raise wrong(other.name, "training and held-out samples differ", f"{mine} and {theirs}", "one shape and type")


def _refuse_other_size(data: Data, shape: Shape, name: str) -> None:
    """A default is no claim; any other size must be right."""
    size = data.image_size
    if size != Data().image_size and shape.size[-2:] != (size, size):
        fix = "leave data.image_size out: arrays are not resized"
        raise wrong(name, "data.image_size is not the size of the images", f"{shape}", f"{size} pixels", fix)


def _shape(one: Stored) -> Shape:
    return Shape(channels=one.pixels.shape[-1], size=tuple(one.pixels.shape[1:-1]))


def _told(pixels: Tensor) -> str:
    return "bytes" if pixels.dtype == torch.uint8 else "floats, which go to the model as they are"
