"""From class folders to labelled image files, split where nothing is held out yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entrypoint import ExitCode, Failure
from train.data import decode, groups, imagefolder, oddities, paths
from train.data.split import held_out_samples
from train.settings import batches
from train.settings.config import Data

Samples = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Files:
    """Image files and their classes. paths: `Paths`, or whatever a factory of the user's own gives."""

    paths: Sequence[str]
    labels: Tensor
    size: int

    def read(self, samples: Samples) -> Tensor:
        """Decode them, uint8 [n, size, size, 3].

        Raises:
            Failure: DATA for a file that is not a whole image, NO_INPUT for one that went away.
        """
        pixels = np.empty((len(samples), self.size, self.size, 3), np.uint8)
        for place, sample in enumerate(samples):
            pixels[place] = decode.decode(Path(str(self.paths[sample])), self.size, int(sample))
        return torch.from_numpy(pixels)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Both sides, the names of the classes, and what is worth saying of the split."""

    training: Files
    held_out: Files
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def find(data: Data) -> Found:
    """List all files of data.root, and split them where nothing is held out yet.

    Raises:
        Failure: NO_INPUT for missing folders and classes without images, DATA for another number of classes and for
            groups that cannot be kept on one side.
    """
    layout = imagefolder.layout(Path(data.root))
    _check_number(data, layout)
    unread, inside = Counter[str](), {name: set[str]() for name in layout.classes}
    training = _listed(layout.training, layout.classes, data.image_size, unread, inside)
    imagefolder.beside(Path(data.root), layout, unread)
    if layout.held_out is not None:
        held_out = _listed(layout.held_out, layout.classes, data.image_size, unread, {})
        if data.group is not None:
            groups.refuse_leak(_groups(training, data), _groups(held_out, data))
        return _found(layout, training, held_out, unread, oddities.parts(inside))
    chosen, notes = _split(training, data)
    held_out, training = _part(training, chosen), _part(training, ~chosen)
    warnings = oddities.parts(inside)
    if data.val_fraction > 0:
        counted = (np.bincount(side.labels.numpy(), minlength=len(layout.classes)) for side in (training, held_out))
        warnings = (*warnings, *oddities.none_held_out(layout.classes, *(one.tolist() for one in counted)))
    return _found(layout, training, held_out, unread, warnings, notes)


def _found(
    layout: imagefolder.Layout,
    training: Files,
    held_out: Files,
    unread: Counter[str],
    warnings: tuple[str, ...],
    notes: tuple[str, ...] = (),
) -> Found:
    told = (oddities.unread(unread), oddities.aside(layout))
    return Found(
        training=training,
        held_out=held_out,
        classes=layout.classes,
        notes=(*notes, *filter(None, told)),
        warnings=warnings,
    )


def _split(files: Files, data: Data) -> tuple[npt.NDArray[np.bool_], tuple[str, ...]]:
    """Which files are held out, and what to say of it."""
    labels = files.labels.numpy()
    count = batches.held_out(len(labels), data.val_fraction)
    if data.group is None:
        return held_out_samples(labels, count), ()
    named = _groups(files, data)
    chosen = groups.held_out_samples(labels, named, count)
    return chosen, (groups.note(named, chosen, count),)


def _groups(files: Files, data: Data) -> list[str]:
    """data.group is searched in paths as they are below the folder of class folders: no folder above may match."""
    return groups.names(paths.packed(files.paths).names(), data.group or "")


def _listed(
    above: Path, classes: tuple[str, ...], size: int, unread: Counter[str], inside: Mapping[str, set[str]]
) -> Files:
    counts: list[int] = []

    def each() -> Iterator[str]:
        for name in classes:
            counts.append(0)
            for path in imagefolder.image_files(above / name, unread, inside.get(name)):
                counts[-1] += 1
                yield str(path)

    listed = paths.of(each(), str(above / "_")[:-1])
    if not all(counts):
        imagefolder.count(above, classes)  # names the empty ones
    return Files(listed, torch.from_numpy(np.repeat(np.arange(len(classes)), counts)), size)


def _part(files: Files, chosen: npt.NDArray[np.bool_]) -> Files:
    return Files(paths.packed(files.paths).part(chosen), files.labels[torch.from_numpy(chosen)], files.size)


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
