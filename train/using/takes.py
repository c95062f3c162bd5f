"""A checkpoint's state and configuration become what its network takes, and the names of the classes that it tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch

from entrypoint import ExitCode, Failure
from train.checkpoint import checkpoint
from train.checkpoint.checkpoint import Committed
from train.data import catalog
from train.data.sets import Sets
from train.data.shape import Shape
from train.measuring.chosen import Chosen
from train.measuring.measuring import Nothing
from train.settings import names
from train.settings.config import Data, RunConfig

GRAY: Final = ("mnist", "fashion_mnist")
# What a file of images can be made into: gray or red, green and blue.
CHANNELS: Final = (1, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Takes:
    """classes: one name for each score. shape: of one sample. bytes_: whether samples are bytes, laid around 0 by
    `augment.normalized`; floats go to the network as they are."""

    classes: tuple[str, ...]
    shape: Shape
    bytes_: bool

    @property
    def sets(self) -> Sets:
        """The same as data without samples."""
        none = Nothing(labels=torch.empty(0, dtype=torch.int64), stored=self.shape.stored)
        return Sets(training=none, held_out=none, classes=self.classes, shape=self.shape)


def state(chosen: Chosen) -> dict[str, Any]:
    """What the checkpoint tells beside its tensors. Raises Failure (DATA) where it was damaged since it was chosen."""
    found = Committed(path=chosen.path, step=chosen.contents.step, contents=chosen.contents)
    return checkpoint.load(found, groups=())[1]


def of(config: RunConfig, told: Mapping[str, Any]) -> Takes:
    """From the checkpoint alone where the kind of data says it; arrays and data of the user's own are opened.

    Raises:
        Failure: where such data is not there, or cannot be read.
    """
    classes, shape = (told.get("data") or {}).get("classes"), known(config.data)
    if classes and shape:
        return Takes(classes=tuple(map(str, classes)), shape=shape, bytes_=True)
    sets = catalog.open_sets(config.data)
    first = sets.training.read(np.arange(1))
    return Takes(classes=sets.classes, shape=sets.shape, bytes_=first.dtype == torch.uint8)


def known(data: Data) -> Shape | None:
    """Of one sample, where it follows from the configuration."""
    if data.name not in (names.SYNTHETIC, names.FOLDER, *names.PUBLISHED):
        return None
    size = (data.image_size, data.image_size)
    frames = () if data.frames is None else (data.frames,)
    return Shape(channels=1 if data.name in GRAY else 3, size=(*frames, *size))


def refuse_files(takes: Takes) -> None:
    """Image files cannot be made into what some networks take.

    Raises:
        Failure: USAGE, saying what it takes.
    """
    size, what = takes.shape.size, f"samples of {takes.shape}"
    if len(size) != 2:
        found = f"clips of {size[0]} frames"
    elif not takes.bytes_:
        found = f"{what}, as floats: how they were made from images is known to whoever wrote the data"
    elif size[0] != size[1] or takes.shape.channels not in CHANNELS:
        found = f"{what}; image files become squares of 1 or 3 channels"
    else:
        return
    raise Failure(
        "this model does not take image files",
        found=found,
        fix="measure it on arrays with `train eval RUN data.root=...`; or hand it on with `train export`, whose "
        "README.md shows how to call it from Python",
        code=ExitCode.USAGE,
    )
