"""From plain tensors of images and labels to one side of a data set, checked: axes, types, numbers and lengths."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from entrypoint import ExitCode, Failure
from train import batches, split, stored
from train.config import Data
from train.sets import Sets
from train.shape import Shape
from train.stored import Stored

CHANNELS: Final = (1, 3, 4)  # what an axis may be long that is taken for channels without being told
LAST: Final = "[N, H, W], [N, H, W, C] with C 1, 3 or 4, clips [N, F, H, W] or [N, F, H, W, C]"
FIRST: Final = "[N, H, W], [N, C, H, W], clips [N, C, F, H, W]"


def side(images: Tensor, labels: Tensor, name: str, *, channels_first: bool) -> Stored:
    """One side of the data. `name`: of the file, for errors.

    Raises:
        Failure: DATA, saying what was found and how to write it instead.
    """
    numbers = _labels(labels, name)
    if len(images) != len(numbers):
        raise _wrong(name, "images and labels are not of one length", f"{len(images)} images, {len(numbers)} labels")
    if images.numel() == 0:
        raise _wrong(name, "there are no samples", f"images {list(images.shape)}", "at least one")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        fix = "scale them to 0..255 and save them as uint8, or to about -2..2 and save them as float32"
        raise _wrong(name, "images of this type cannot be used", _kind(images), "uint8 or a float", fix)
    return stored.whole(laid_out(images, name, channels_first=channels_first), numbers, name)


def laid_out(images: Tensor, name: str, *, channels_first: bool) -> Tensor:
    """A view as [N, *size, channels].

    In .npz files channels are last: four axes are images where the last is 1, 3 or 4 long, else clips of one channel.
    In tensor files they are first, as torch has them: four axes are images, five are clips.

    Raises:
        Failure: DATA for another number of axes, or where they look like the other convention.
    """
    shape = list(images.shape)
    if len(shape) == 3:
        return images[..., None]
    if (
        len(shape) == 4
        and (shape[1] in CHANNELS) != (shape[3] in CHANNELS)
        and (shape[1] in CHANNELS) != channels_first
    ):
        raise _turned(name, shape, channels_first)
    if len(shape) not in (4, 5):
        raise _wrong(name, "images with these axes cannot be used", f"{shape}", FIRST if channels_first else LAST)
    if channels_first:
        return images.movedim(1, -1)
    return images[..., None] if len(shape) == 4 and shape[3] not in CHANNELS else images


def sets(data: Data, training: Stored, held_out: Stored | None) -> Sets:
    """Both sides; where nothing is held out, data.val_fraction of every class is.

    Raises:
        Failure: DATA, where the sides do not fit together, or not to the config.
    """
    shape = _shape(training)
    if held_out is not None:
        _same_kind(training, held_out)
    classes = _classes(data, training, held_out)
    _refuse_other_size(data, shape, training.name)
    if held_out is None:
        count = batches.held_out(len(training.labels), data.val_fraction)
        chosen = torch.from_numpy(split.held_out_samples(training.labels.numpy(), count))
        training, held_out = stored.part(training, ~chosen), stored.part(training, chosen)
    names = tuple(str(label) for label in range(classes))
    note = f"{training.name} holds {'clips' if len(shape.size) == 3 else 'images'} of {shape}, {_told(training.pixels)}"
    return Sets(training=training, held_out=held_out, classes=names, shape=shape, notes=(note,))


def _labels(labels: Tensor, name: str) -> Tensor:
    """int64 [N]; [N, 1] is taken too."""
    flat = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if flat.ndim != 1:
        fix = "save labels.argmax(1)" if flat.ndim == 2 else "save one label for each sample"
        raise _wrong(name, "labels have other axes than samples", f"labels {list(labels.shape)}", "[N]", fix)
    if flat.is_floating_point() or flat.is_complex() or flat.dtype == torch.bool:
        raise _wrong(name, "labels are not integers", _kind(labels), "integers", "save labels.astype('int64')")
    flat = flat.to(torch.int64)
    if len(flat) and int(flat.min()) < 0:
        raise _wrong(name, "a label is negative", f"{int(flat.min())}", "labels from 0 on", "number the classes from 0")
    return flat


def _classes(data: Data, training: Stored, held_out: Stored | None) -> int:
    """How many there are: data.classes, or, at its default, as many as there are labels.

    A class without a training sample is taken for a mistake (labels that begin with 1), unless data.classes says how
    many there are.
    """
    both = [training.labels] if held_out is None else [training.labels, held_out.labels]
    found = max(int(labels.max()) for labels in both) + 1
    claimed = data.classes if data.classes != Data().classes else None
    if claimed is not None and found > claimed:
        fix = f"set data.classes to {found}, or leave it out"
        raise _wrong(training.name, "a label is not below data.classes", f"label {found - 1}", f"below {claimed}", fix)
    empty = [] if claimed else (torch.bincount(training.labels, minlength=found) == 0).nonzero().flatten().tolist()
    if empty:
        what = f"{len(empty)} of {found} classes have no training sample"
        fix = f"number the classes from 0 without gaps, or set data.classes to {found} if this is meant"
        raise _wrong(training.name, what, f"no label {', '.join(map(str, empty[:5]))}", f"0..{found - 1}", fix)
    if (claimed or found) < 2:
        raise _wrong(training.name, "there is only one class", "label 0 alone", "two classes or more")
    return claimed or found


def _same_kind(one: Stored, other: Stored) -> None:
    mine, theirs = (f"{_shape(side)}, {_told(side.pixels)}" for side in (one, other))
    if mine != theirs:
        raise _wrong(other.name, "training and held-out samples differ", f"{mine} and {theirs}", "one shape and type")


def _refuse_other_size(data: Data, shape: Shape, name: str) -> None:
    """A default is no claim; any other size must be right."""
    size = data.image_size
    if size != Data().image_size and shape.size[-2:] != (size, size):
        fix = "leave data.image_size out: arrays are not resized"
        raise _wrong(name, "data.image_size is not the size of the images", f"{shape}", f"{size} pixels", fix)


def _shape(one: Stored) -> Shape:
    return Shape(channels=one.pixels.shape[-1], size=tuple(one.pixels.shape[1:-1]))


def _told(pixels: Tensor) -> str:
    return "bytes" if pixels.dtype == torch.uint8 else "floats, which go to the model as they are"


def _kind(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _turned(name: str, shape: list[int], channels_first: bool) -> Failure:
    found = f"{shape}, whose channels seem to be {'last' if channels_first else 'first'}"
    fix = "permute the axes: (0, 3, 1, 2)" if channels_first else "permute the axes: (0, 2, 3, 1)"
    fix += "" if channels_first else f"; clips of {shape[1]} frames are saved as [N, {shape[1]}, H, W, 1]"
    return _wrong(name, "images have their channels in another place", found, FIRST if channels_first else LAST, fix)


def _wrong(
    name: str, what: str, found: str, expected: str = "one of each", fix: str = "write the file anew"
) -> Failure:
    return Failure(what, found=f"{name}: {found}", expected=expected, fix=fix, code=ExitCode.DATA)
