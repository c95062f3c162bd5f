"""From class folders to labelled image files, split where nothing is held out yet, and from a file to its pixels."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from entrypoint import ExitCode, Failure
from train import batches, groups, imagefolder
from train.config import Data
from train.split import held_out_samples

Samples = npt.NDArray[np.int64]
# All that Pillow raises for 70,000 damaged files of its main formats.
BROKEN: Final = (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError)
# The system's own errors say nothing of the image: skipping it would hide a lost disk.
_AWAY = (ExitCode.NO_INPUT, "let this user read the file, or delete it")
_DISK = (ExitCode.IO, "start again when the file system answers")
_FULL = (ExitCode.RESOURCE, "set data.workers lower, or raise the limit of open files (ulimit -n)")
SYSTEM: Final[Mapping[int | None, tuple[ExitCode, str]]] = {
    errno.ENOENT: (ExitCode.NO_INPUT, "put the file back; while a run lasts, its files must stay"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), _AWAY),
    **dict.fromkeys((errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EREMOTEIO), _DISK),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE, errno.ENOMEM), _FULL),
}


@dataclass(frozen=True, slots=True)
class Files:
    """Image files and their classes."""

    paths: npt.NDArray[np.str_]
    labels: Tensor
    size: int

    def read(self, samples: Samples) -> Tensor:
        """Decode them, uint8 [n, size, size, 3].

        Raises:
            Failure: DATA for a file that is not a whole image, NO_INPUT for one that went away.
        """
        pixels = np.empty((len(samples), self.size, self.size, 3), np.uint8)
        for place, sample in enumerate(samples):
            pixels[place] = decode(Path(str(self.paths[sample])), self.size, int(sample))
        return torch.from_numpy(pixels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Both sides, the names of the classes, and what is worth saying of the split."""

    training: Files
    held_out: Files
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()


def find(data: Data) -> Found:
    """List all files of data.root, and split them where nothing is held out yet.

    Raises:
        Failure: NO_INPUT for missing folders and classes without images, DATA for another number of classes and for
            groups that cannot be kept on one side.
    """
    layout = imagefolder.layout(Path(data.root))
    _check_number(data, layout)
    training = _listed(layout.training, layout.classes, data.image_size)
    if layout.held_out is not None:
        held_out = _listed(layout.held_out, layout.classes, data.image_size)
        if data.group is not None:
            groups.refuse_leak(_groups(training, layout.training, data), _groups(held_out, layout.held_out, data))
        return Found(training=training, held_out=held_out, classes=layout.classes)
    chosen, notes = _split(training, layout.training, data)
    return Found(
        training=_part(training, ~chosen), held_out=_part(training, chosen), classes=layout.classes, notes=notes
    )


def decode(path: Path, size: int, sample: int) -> npt.NDArray[np.uint8]:
    """One image as RGB, its shorter side scaled to `size`, the middle of the longer one.

    Raises:
        Failure: DATA for what is no whole image, NO_INPUT for a file that is gone or not for this user, IO or RESOURCE
            where the system failed; all name path and index.
    """
    try:
        with Image.open(path) as image:
            image.draft("RGB", (size, size))
            return np.asarray(_square(image.convert("RGB"), size))
    except BROKEN as error:
        raise unreadable(path, sample, error) from error


def _square(image: Image.Image, size: int) -> Image.Image:
    if image.size == (size, size):
        return image
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))


def _split(files: Files, above: Path, data: Data) -> tuple[npt.NDArray[np.bool_], tuple[str, ...]]:
    """Which files are held out, and what to say of it."""
    labels = files.labels.numpy()
    count = batches.held_out(len(labels), data.val_fraction)
    if data.group is None:
        return held_out_samples(labels, count), ()
    named = _groups(files, above, data)
    chosen = groups.held_out_samples(labels, named, count)
    return chosen, (groups.note(named, chosen, count),)


def _groups(files: Files, above: Path, data: Data) -> list[str]:
    """data.group is searched in paths as they are below the folder of class folders: no folder above may match."""
    return groups.names((Path(str(path)).relative_to(above).as_posix() for path in files.paths), data.group or "")


def _listed(above: Path, classes: tuple[str, ...], size: int) -> Files:
    found = [(str(path), label) for label, name in enumerate(classes) for path in imagefolder.image_files(above / name)]
    counts = Counter(label for _, label in found)
    if len(counts) < len(classes):
        imagefolder.count(above, classes)  # names the empty ones
    paths, labels = zip(*found, strict=True)
    return Files(np.array(paths), torch.tensor(labels), size)


def _part(files: Files, chosen: npt.NDArray[np.bool_]) -> Files:
    return Files(files.paths[chosen], files.labels[torch.from_numpy(chosen)], files.size)


def _check_number(data: Data, layout: imagefolder.Layout) -> None:
    """A default is no claim; any other number must be right."""
    if data.classes not in (len(layout.classes), Data().classes):
        raise Failure(
            "data.classes is not the number of class folders",
            found=f"{len(layout.classes)} folders in {layout.training}",
            expected=f"data.classes: {data.classes}",
            fix=f"set data.classes to {len(layout.classes)}, or leave it out",
            code=ExitCode.DATA,
        )


def unreadable(path: Path, sample: int, error: Exception) -> Failure:
    """What an error of Pillow's or of the system's means, with the way to mend it."""
    number = error.errno if isinstance(error, OSError) else None
    code, fix = SYSTEM.get(number, (ExitCode.DATA, "replace the file by a whole image, or delete it"))
    reason = "it is gone" if number == errno.ENOENT else str(error)
    return Failure(f"image {sample} cannot be read", found=f"{path}: {reason}", fix=fix, code=code)
