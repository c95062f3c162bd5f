"""From the items of the user's own dataset to samples of one shape, and an error that names the item that is wrong."""

from __future__ import annotations

import operator
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from entrypoint import ExitCode, Failure
from train import plugin
from train.data import decode, depth
from train.data.axes import laid_out
from train.data.sets import Samples

LOOKED: Final = 8  # items that are read twice
ONE_AT_A_TIME: Final = threading.Lock()  # a user's dataset (an HDF5 file, a counter) need not stand several threads


@dataclass(frozen=True, slots=True, eq=False)
class Items:
    """Some items of the user's dataset.

    rows: int64 [count], which of them. labels: int64 [count]. size: what PIL images are scaled and cut to. first: the
    stored shape and type that all must have; None until the first is read. name: for errors.
    """

    dataset: Any
    rows: Tensor
    labels: Tensor
    size: int
    name: str
    first: tuple[tuple[int, ...], torch.dtype] | None = None

    def read(self, samples: Samples) -> Tensor:
        """uint8 or float32 [n, *size, channels].

        Raises:
            Failure: DATA, naming the item and, for an error in the user's code, its line.
        """
        shape, kind = self.first or ((0,), torch.uint8)
        with ONE_AT_A_TIME:
            read = [self.one(int(sample)) for sample in samples]
        return torch.stack(read) if read else torch.empty((0, *shape), dtype=kind)

    def one(self, sample: int) -> Tensor:
        """One sample, of the same shape and type as the others, with the label that it was listed with."""
        row = int(self.rows[sample])
        image, label = item(self.dataset, row, self.name)
        pixels = _pixels(image, self.size, f"{self.name} item {row}")
        if self.first is not None and (tuple(pixels.shape), pixels.dtype) != self.first:
            expected, found = told(*self.first), told(tuple(pixels.shape), pixels.dtype)
            raise _bad(self.name, row, "is not like the first one", found, expected)
        if label != int(self.labels[sample]):
            expected = f"label {int(self.labels[sample])}, as .targets says"
            raise _bad(self.name, row, "has another label than the dataset lists", f"label {label}", expected)
        if pixels.is_floating_point() and not pixels.isfinite().all():
            raise _bad(self.name, row, "holds numbers that are not finite", "NaN or infinity", "finite numbers")
        return pixels


def open_items(dataset: Any, labels: Tensor, size: int, name: str) -> Items:
    """All items; the first is read, and the others must be like it."""
    rows = torch.arange(len(labels))
    first = Items(dataset, rows, labels, size, name).one(0)
    return Items(dataset, rows, labels, size, name, (tuple(first.shape), first.dtype))


def changing(items: Items) -> int | None:
    """Which of the first few items is another one when it is read again; None where all stay, as a half of random flips
    does not.
    """
    for sample in range(min(LOOKED, len(items.labels))):
        with suppress(Failure):  # one that cannot be read is counted where it is used
            if not torch.equal(items.one(sample), items.one(sample)):
                return int(items.rows[sample])
    return None


def depths(items: Items) -> list[int | None]:
    """As `depth.of_files`, of the first few items; nothing where they are no PIL images."""
    found: list[int | None] = []
    for row in items.rows[:LOOKED].tolist():
        with suppress(Failure, *decode.BROKEN):
            image, _ = item(items.dataset, row, items.name)
            if not isinstance(image, Image.Image):
                return []
            found.append(depth.highest(image))
    return found


def are_pictures(items: Items) -> bool:
    """Whether they are PIL images, which are cut and scaled here; arrays are as the data set has made them."""
    return isinstance(item(items.dataset, int(items.rows[0]), items.name)[0], Image.Image)


def part(items: Items, chosen: Tensor) -> Items:
    """The items where `chosen` (bool [count]) is true."""
    return Items(items.dataset, items.rows[chosen], items.labels[chosen], items.size, items.name, items.first)


def item(dataset: Any, row: int, name: str) -> tuple[Any, int]:
    """(image, label) of one item.

    Raises:
        Failure: DATA.
    """
    try:
        found = dataset[row]
    except (Failure, MemoryError):
        raise
    except Exception as error:
        raise _bad(name, row, "cannot be read", plugin.said(error), "(image, label)") from error
    try:
        image, label = found
        return image, operator.index(label)
    except (TypeError, ValueError) as error:
        seen = f"{type(found).__name__}: {error}"
        raise _bad(name, row, "is no pair", seen, "(image, label), the label an integer") from error


def _pixels(image: Any, size: int, name: str) -> Tensor:
    """One image or clip as [*size, channels]: tensors have their channels first, arrays last, as files of them do."""
    if isinstance(image, Image.Image):
        return torch.from_numpy(np.array(decode.square(_rgb(image, name), size)))
    if not isinstance(image, (Tensor, np.ndarray)):
        raise _wrong(name, f"a {type(image).__name__}")
    if isinstance(image, np.ndarray) and image.dtype.kind not in "biufc":
        raise _wrong(name, f"an array of {image.dtype}")
    found = torch.as_tensor(image)
    if found.dtype != torch.uint8 and not found.is_floating_point():
        raise _wrong(name, f"an array of {str(found.dtype).removeprefix('torch.')}")
    laid = laid_out(found[None], name, channels_first=isinstance(image, Tensor))[0]
    return laid.contiguous() if laid.dtype == torch.uint8 else laid.float().contiguous()


def _rgb(image: Image.Image, name: str) -> Image.Image:
    """Upright and in 8 bits. Mode I also comes of numbers up to 255: their upper 8 of 16 bits would be black."""
    try:
        flat = decode.rgb(image)
        if image.mode == "I" and 0 < np.asarray(image).max() <= 0xFF:
            raise ValueError("pixels of 32 bits (mode I), none above 255: save it with 8 or 16 bits")
    except decode.BROKEN as error:  # an image that was opened is read only here
        if isinstance(error, OSError) and error.errno in decode.SYSTEM:
            raise
        raise _wrong(name, str(error)) from error
    return flat


def told(shape: tuple[int, ...], kind: torch.dtype) -> str:
    """In words."""
    return f"{list(shape)}, {str(kind).removeprefix('torch.')}"


def _bad(name: str, row: int, what: str, found: str, expected: str) -> Failure:
    said = f"{name} item {row} {what}"
    return Failure(said, found=found, expected=expected, fix="mend the dataset, or leave it out", code=ExitCode.DATA)


def _wrong(name: str, found: str) -> Failure:
    expected = "a PIL image, or an array or tensor of uint8 or floats"
    fix = "convert it in the dataset's __getitem__, or leave it out"
    return Failure(f"{name} is no image", found=found, expected=expected, fix=fix, code=ExitCode.DATA)
