"""From class folders to labelled image files, split where nothing is held out yet, and from a file to its pixels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from entrypoint import ExitCode, Failure
from train import batches, imagefolder
from train.config import Data
from train.split import held_out_samples

Samples = npt.NDArray[np.int64]


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


def find(data: Data) -> tuple[Files, Files, tuple[str, ...]]:
    """(training files, held-out files, class names).

    Raises:
        Failure: NO_INPUT for missing folders and classes without images, DATA for another number of classes.
    """
    layout = imagefolder.layout(Path(data.root))
    _check_number(data, layout)
    training = _listed(layout.training, layout.classes, data.image_size)
    if layout.held_out is not None:
        return training, _listed(layout.held_out, layout.classes, data.image_size), layout.classes
    held_out = held_out_samples(training.labels.numpy(), batches.held_out(len(training.labels), data.val_fraction))
    return _part(training, ~held_out), _part(training, held_out), layout.classes


def decode(path: Path, size: int, sample: int) -> npt.NDArray[np.uint8]:
    """One image as RGB, its shorter side scaled to `size`, the middle of the longer one.

    Raises:
        Failure: DATA or NO_INPUT, naming path and index.
    """
    try:
        with Image.open(path) as image:
            image.draft("RGB", (size, size))
            return np.asarray(_square(image.convert("RGB"), size))
    except FileNotFoundError as error:
        raise _unreadable(path, sample, "it is gone", ExitCode.NO_INPUT) from error
    except (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise _unreadable(path, sample, str(error), ExitCode.DATA) from error


def _square(image: Image.Image, size: int) -> Image.Image:
    if image.size == (size, size):
        return image
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))


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


def _unreadable(path: Path, sample: int, reason: str, code: ExitCode) -> Failure:
    return Failure(
        f"image {sample} cannot be read",
        found=f"{path}: {reason}",
        fix="replace the file by a whole image, or delete it",
        code=code,
    )
