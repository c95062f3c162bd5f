"""From the axes of an array of images or clips to ours: samples, frames, height, width, channels."""

from __future__ import annotations

from typing import Final

from torch import Tensor

from entrypoint import Failure
from train.data.labels import wrong

CHANNELS: Final = (1, 3, 4)  # what an axis may be long that is taken for channels without being told
LAST: Final = "[N, H, W], [N, H, W, C] with C 1, 3 or 4, clips [N, F, H, W] or [N, F, H, W, C]"
FIRST: Final = "[N, H, W], [N, C, H, W], clips [N, C, F, H, W]"


def laid_out(images: Tensor, name: str, *, channels_first: bool) -> Tensor:
    """A view as [N, *size, channels].

    In .npz files channels are last: four axes are images where the last is 1, 3 or 4 long, else clips of one channel.
    In tensor files they are first, as torch has them: four axes are images, five are clips.

    Raises:
        Failure: DATA for another number of axes, or where they look like the other convention, or like many channels
            that are last: as a clip of one channel they would be trained on over rows, columns and bands.
    """
    shape = list(images.shape)
    if len(shape) == 3:
        return images[..., None]
    if (
        len(shape) == 4
        and (shape[1] in CHANNELS) != (shape[3] in CHANNELS)
        and (shape[1] in CHANNELS) != channels_first
    ):
        raise _turned(name, shape, channels_first)
    if len(shape) == 4 and _seem_bands(shape):
        raise _bands(name, shape, channels_first)
    if len(shape) not in (4, 5):
        raise wrong(name, "images with these axes cannot be used", f"{shape}", FIRST if channels_first else LAST)
    if channels_first:
        return images.movedim(1, -1)
    return images[..., None] if len(shape) == 4 and shape[3] not in CHANNELS else images


def _seem_bands(shape: list[int]) -> bool:
    """Images are often square, with fewer bands than rows; a clip of as many frames as rows is hardly that narrow."""
    return shape[1] == shape[2] > 2 * shape[3] and shape[3] not in CHANNELS


def _bands(name: str, shape: list[int], channels_first: bool) -> Failure:
    found = f"{shape}, whose last axis seems to be {shape[3]} channels"
    fix = f"permute the axes: (0, 3, 1, 2), and save tensors [N, {shape[3]}, H, W] (data.name: tensor)"
    fix += "" if channels_first else f"; clips of {shape[1]} frames are saved as [N, {shape[1]}, H, W, 1]"
    return wrong(name, "images have more channels than can be told", found, FIRST if channels_first else LAST, fix)


def _turned(name: str, shape: list[int], channels_first: bool) -> Failure:
    found = f"{shape}, whose channels seem to be {'last' if channels_first else 'first'}"
    fix = "permute the axes: (0, 3, 1, 2)" if channels_first else "permute the axes: (0, 2, 3, 1)"
    fix += "" if channels_first else f"; clips of {shape[1]} frames are saved as [N, {shape[1]}, H, W, 1]"
    return wrong(name, "images have their channels in another place", found, FIRST if channels_first else LAST, fix)
