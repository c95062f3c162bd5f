"""From the folder of an image data set to what is in it, counted in one walk: images of both sides, and other files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from train.data import imagefolder
from train.oneline import one_line
from train.settings.batches import held_out
from train.settings.config import Data

SHOWN: Final = 5  # names, and kinds of files
WIDEST: Final = 40  # letters of a name
# Pictures that Pillow does not read everywhere: who has them takes them for images.
PICTURES: Final = (".heic", ".heif", ".avif", ".jxl", ".jp2", ".svg", ".psd", ".dng", ".cr2", ".nef", ".arw")
BESIDE: Final = " beside the class folders"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Images on both sides, and by ending how many files are not read."""

    classes: tuple[str, ...]
    training: int
    held_out: int
    unread: Mapping[str, int]

    def row(self) -> str:
        """The images in words."""
        names = ", ".join(map(shortened, self.classes[:SHOWN])) + (", ..." if len(self.classes) > SHOWN else "")
        images = f"{self.training + self.held_out:,} images in {len(self.classes):,} classes ({names})"
        return f"{images}: {self.training:,} to train on, {self.held_out:,} held out"

    def note(self) -> str | None:
        """The other files in words; None where there are none."""
        if not self.unread:
            return None
        kinds = sorted(self.unread.items(), key=lambda kind: (-kind[1], kind[0]))
        listed = ", ".join(f"{ending} ({count:,})" for ending, count in kinds[:SHOWN])
        more = f" and {len(kinds) - SHOWN} more endings" if len(kinds) > SHOWN else ""
        number = sum(self.unread.values())
        told = f"{number:,} files are not read" if number > 1 else "1 file is not read"
        return f"{told}: {listed}{more}{self._fix()}"

    def _fix(self) -> str:
        lost = any(ending.endswith(BESIDE) for ending in self.unread)
        others = any(ending in PICTURES for ending in self.unread)
        fixes = ["move images into the folders of their classes"] if lost else []
        fixes += ["save pictures of other kinds as .jpg or .png"] if others else []
        return f". fix: {'; '.join(fixes)}" if fixes else ""

    def facts(self) -> dict[str, Any]:
        """What a run that goes on compares with what it began with."""
        return {"classes": [*self.classes], "training": self.training, "held_out": self.held_out}


def shortened(name: str) -> str:
    """Of a class, as a line shows it."""
    return one_line(name if len(name) <= WIDEST else f"{name[: WIDEST - 1]}…")


def look(data: Data) -> Found:
    """Walk through data.root.

    Raises:
        Failure: NO_INPUT for missing folders and for classes without images; DATA for groups that cannot be kept on
            one side.
    """
    layout, unread = imagefolder.layout(Path(data.root)), Counter[str]()
    images = imagefolder.count(layout.training, layout.classes, unread)
    for folder in {Path(data.root), layout.training, layout.held_out or layout.training}:
        _beside(folder, unread)
    if layout.held_out is not None:
        training, rest = images, imagefolder.count(layout.held_out, layout.classes, unread)
    elif data.group is None:
        rest = held_out(images, data.val_fraction)
        training = images - rest
    else:
        from train.data import groups  # numpy

        training = groups.trained_on(layout, data.group, data.val_fraction)
        rest = images - training
    return Found(classes=layout.classes, training=training, held_out=rest, unread=unread)


def _beside(folder: Path, unread: Counter[str]) -> None:
    """Count the files that lie in no class folder."""
    for name in imagefolder.entries(folder, os.DirEntry.is_file):
        image = name.lower().endswith(imagefolder.SUFFIXES)
        if image or not name.startswith("."):
            unread[imagefolder.ending(name) + (BESIDE if image else "")] += 1
