"""From the folder of an image data set to what is in it, counted in one walk: images of both sides, and other files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from train.data import imagefolder, oddities
from train.oneline import shortened
from train.settings.batches import held_out
from train.settings.config import Data

SHOWN: Final = 5  # names


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Images on both sides, by ending how many files are not read, and what looks like a slip.

    aside: in words, the folders that are not read.
    """

    classes: tuple[str, ...]
    training: int
    held_out: int
    unread: Mapping[str, int]
    warnings: tuple[str, ...] = ()
    aside: str | None = None

    def row(self) -> str:
        """The images in words."""
        names = ", ".join(map(shortened, self.classes[:SHOWN])) + (", ..." if len(self.classes) > SHOWN else "")
        images = f"{self.training + self.held_out:,} images in {len(self.classes):,} classes ({names})"
        return f"{images}: {self.training:,} to train on, {self.held_out:,} held out"

    def note(self) -> str | None:
        """The other files in words; None where there are none."""
        return oddities.unread(self.unread)

    def facts(self) -> dict[str, Any]:
        """What a run that goes on compares with what it began with."""
        return {"classes": [*self.classes], "training": self.training, "held_out": self.held_out}


def look(data: Data) -> Found:
    """Walk through data.root.

    Raises:
        Failure: NO_INPUT for missing folders and for classes without images; DATA for groups that cannot be kept on
            one side.
    """
    layout, unread = imagefolder.layout(Path(data.root)), Counter[str]()
    inside: dict[str, set[str]] = {name: set() for name in layout.classes}
    counts = imagefolder.counts(layout.training, layout.classes, unread, inside)
    imagefolder.beside(Path(data.root), layout, unread)
    images, warnings = sum(counts.values()), oddities.parts(inside)
    if layout.held_out is not None:
        training, rest = images, imagefolder.count(layout.held_out, layout.classes, unread)
    elif data.group is None:
        rest = held_out(images, data.val_fraction)
        training, warnings = images - rest, (*warnings, *_small(counts, rest, data.val_fraction))
    else:
        from train.data import groups  # numpy

        training = groups.trained_on(layout, data.group, data.val_fraction)
        rest = images - training
    return Found(
        classes=layout.classes,
        training=training,
        held_out=rest,
        unread=unread,
        warnings=warnings,
        aside=oddities.aside(layout),
    )


def _small(counts: Mapping[str, int], rest: int, fraction: float) -> tuple[str, ...]:
    """What is to be said of classes of which no image is held out. Of one image in 1 / fraction at least one is."""
    if fraction == 0 or min(counts.values()) * fraction >= 1:
        return ()
    import numpy as np

    from train.data import split

    labels = np.repeat(np.arange(len(counts)), [*counts.values()])
    chosen = np.bincount(labels[split.held_out_samples(labels, rest)], minlength=len(counts))
    training = [count - held for count, held in zip(counts.values(), chosen.tolist(), strict=True)]
    return oddities.none_held_out([*counts], training, chosen.tolist())
