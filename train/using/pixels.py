"""Image files become pixels as the evaluation reads them: cut to a square, scaled, gray where the network wants it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from entrypoint import ExitCode, Failure
from train.data import augment, decode
from train.data.shape import Shape

# What says nothing of the image: the disk is gone, or there is no room.
NOT_THE_IMAGE: Final = (ExitCode.IO, ExitCode.RESOURCE)


def read(path: Path, shape: Shape, *, draft: bool = True) -> npt.NDArray[np.uint8]:
    """One image, uint8 [size, size, 1 or 3]. draft, and raises Failure, as `decode.decode`."""
    pixels = decode.decode(path, shape.size[0], 0, draft=draft)
    if shape.channels == 3:
        return pixels
    return np.asarray(Image.fromarray(pixels).convert("L"))[..., None]


def batch(
    paths: Sequence[Path], shape: Shape, threads: Executor, *, draft: bool = True
) -> tuple[Tensor, list[Failure | None]]:
    """Those that can be read, float32 [n, channels, size, size] as the network takes them; and for each path why not.

    Raises:
        Failure: IO or RESOURCE: the system failed, and the images may be fine.
    """
    found = list(threads.map(lambda path: _tried(path, shape, draft), paths))
    bad = [one if isinstance(one, Failure) else None for one in found]
    if gone := next((one for one in bad if one and one.code in NOT_THE_IMAGE), None):
        raise gone
    whole = [one for one in found if not isinstance(one, Failure)]
    stacked = np.stack(whole) if whole else np.empty((0, *shape.stored), np.uint8)
    return augment.normalized(torch.from_numpy(stacked)), bad


def _tried(path: Path, shape: Shape, draft: bool) -> npt.NDArray[np.uint8] | Failure:
    try:
        return read(path, shape, draft=draft)
    except Failure as failure:
        return failure
