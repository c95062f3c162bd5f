"""Whether a model takes the kind of samples that the data has: images, or clips."""

from __future__ import annotations

from typing import Final

from entrypoint import ExitCode, Failure
from train.settings import names
from train.settings.config import Data

KINDS: Final = {2: "images", 3: "clips"}  # by the number of directions in a sample: with or without frames
CLIP_MODELS: Final = ("cnn3d",)  # those of ours that take clips; all others but a factory's take images


def dimensions(data: Data) -> int | None:
    """Of a sample, where the name of the data tells it."""
    if data.name in names.ARRAYS or names.is_factory(data.name):
        return None
    return 3 if data.frames is not None else 2


def refuse_mismatch(model: str, dims: int | None, found: str) -> None:
    """Clips for a model of images, or images for one of clips.

    Raises:
        Failure: USAGE, naming both.
    """
    takes = 3 if model in CLIP_MODELS else 2
    if dims in (None, takes) or names.is_factory(model):
        return
    other = names.OWN_MODELS[0] if model in CLIP_MODELS else CLIP_MODELS[0]
    raise Failure(
        f"model.name {model} takes {KINDS[takes]}, and the data has {KINDS.get(dims, 'neither')}",
        found=found,
        fix=f"set model.name to {other}, or take other data (data.frames makes synthetic clips)",
        code=ExitCode.USAGE,
    )
