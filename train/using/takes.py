"""A checkpoint's state and configuration become what its network takes, and the names of the classes that it tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
import torch

from entrypoint import ExitCode, Failure
from train.checkpoint import checkpoint
from train.checkpoint.checkpoint import Committed
from train.data import catalog, items
from train.data.folder import Files
from train.data.items import Items
from train.data.sets import Sets, Source
from train.data.shape import Shape
from train.measuring.chosen import Chosen
from train.measuring.measuring import Nothing
from train.settings import names
from train.settings.config import Data, RunConfig

GRAY: Final = ("mnist", "fashion_mnist")
# What a file of images can be made into: gray or red, green and blue.
CHANNELS: Final = (1, 3)
OURS: Final = (names.SYNTHETIC, names.FOLDER, *names.PUBLISHED)
# Of what the training's samples were made: files, read here; PIL images, cut and scaled here; or arrays, by others.
Made = Literal["files", "pictures", "arrays"]
DOUBT: Final = (
    "the training's data were arrays: how they were made of images is known to whoever wrote them. Image files become "
    "{shape} of their central square, in {colours}: the answers hold only where the arrays were made so too"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Takes:
    """classes: one name for each score. shape: of one sample. bytes_: whether samples are bytes, laid around 0 by
    `augment.normalized`; floats go to the network as they are. made: of what they were made."""

    classes: tuple[str, ...]
    shape: Shape
    bytes_: bool
    made: Made = "files"

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
    """From the checkpoint alone where the kind of data says it; arrays and data of the user's own are opened, for the
    shape: what they call their classes today need not be what the scores stand for.

    Raises:
        Failure: where such data is not there, or cannot be read.
    """
    classes = tuple(map(str, (told.get("data") or {}).get("classes") or ()))
    shape = known(config.data)
    if classes and shape:
        return Takes(classes=classes, shape=shape, bytes_=True)
    sets = catalog.open_sets(config.data)
    first = sets.training.read(np.arange(1))
    return Takes(
        classes=classes or sets.classes,
        shape=sets.shape,
        bytes_=first.dtype == torch.uint8,
        made=_made(config.data, sets.training),
    )


def _made(data: Data, source: Source) -> Made:
    if data.name in OURS or isinstance(source, Files):
        return "files"
    return "pictures" if isinstance(source, Items) and items.are_pictures(source) else "arrays"


def known(data: Data) -> Shape | None:
    """Of one sample, where it follows from the configuration."""
    if data.name not in OURS:
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


def made(told: object, name: object) -> Made:
    """As an export tells it; of an older one that tells nothing, as far as the data's name does."""
    for one in get_args(Made):
        if told == one:
            return one  # type: ignore[no-any-return]
    return "files" if told is None and name in OURS else "arrays"


def doubt(takes: Takes) -> str | None:
    """What to say where image files are given to a network that learned from something else."""
    if takes.made != "arrays":
        return None
    return DOUBT.format(shape=takes.shape, colours="gray" if takes.shape.channels == 1 else "RGB")
