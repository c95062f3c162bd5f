"""Holds timm's variant of RandAugment: 15 operations, each used with a probability, whose strength varies.

timm describes it by a text such as rand-m6-mstd0.5-inc1 (magnitude, its standard deviation, "increasing"). The
operations are Pillow's, as in timm; tests compare the pixels. Images on a GPU are changed on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

MAX_MAGNITUDE: Final = 10.0
DRAWS_PER_OPERATION: Final = 5  # which, whether at all, how strong, which sign, which interpolation
SMALLEST_NUMBER: Final = 2.0**-25  # below what is drawn, 24 bits: the normal distribution has no value at 0
SOLARIZE_ADD_THRESHOLD: Final = 128
INTERPOLATIONS: Final = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What is drawn for one operation on one image.

    level: the magnitude / 10. sign: 1 or -1. increasing: whether all operations change more at a higher magnitude.
    fill: the colour beyond the border, an integer of each channel.
    """

    level: float
    sign: int
    increasing: bool
    fill: tuple[int, ...]
    interpolation: Image.Resampling


Change = Callable[[Image.Image, Drawn], Image.Image]


def _transform(image: Image.Image, matrix: tuple[float, ...], drawn: Drawn) -> Image.Image:
    fill: Any = drawn.fill
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample=drawn.interpolation, fillcolor=fill)


def _rotate(image: Image.Image, drawn: Drawn) -> Image.Image:
    fill: Any = drawn.fill
    return image.rotate(drawn.sign * 30 * drawn.level, resample=drawn.interpolation, fillcolor=fill)


def _posterize(image: Image.Image, drawn: Drawn) -> Image.Image:
    """Keep the upper bits of each number; none of them leaves black, which Pillow's own function refuses to make."""
    bits = int(drawn.level * 4)
    kept = 4 - bits if drawn.increasing else bits
    return ImageOps.posterize(image, kept) if kept else Image.new(image.mode, image.size)


def _solarize(image: Image.Image, drawn: Drawn) -> Image.Image:
    threshold = min(256, int(drawn.level * 256))
    return ImageOps.solarize(image, 256 - threshold if drawn.increasing else threshold)


def _solarize_add(image: Image.Image, drawn: Drawn) -> Image.Image:
    """Make the darker half of the levels brighter."""
    values, added = np.arange(256), min(128, int(drawn.level * 110))
    table = np.where(values < SOLARIZE_ADD_THRESHOLD, np.minimum(255, values + added), values)
    return image.point([*table.tolist()] * len(image.getbands()))


def _enhance(enhancer: Callable[[Image.Image], Any]) -> Change:
    def change(image: Image.Image, drawn: Drawn) -> Image.Image:
        factor = drawn.level * 1.8 + 0.1
        if drawn.increasing:
            factor = max(0.1, 1.0 + drawn.sign * drawn.level * 0.9)
        changed: Image.Image = enhancer(image).enhance(factor)
        return changed

    return change


# In the order of timm's list: an operation is drawn by its place.
POLICY_OPERATIONS: Final[Mapping[str, Change]] = {
    "autocontrast": lambda image, drawn: ImageOps.autocontrast(image),
    "equalize": lambda image, drawn: ImageOps.equalize(image),
    "invert": lambda image, drawn: ImageOps.invert(image),
    "rotate": _rotate,
    "posterize": _posterize,
    "solarize": _solarize,
    "solarize_add": _solarize_add,
    "color": _enhance(ImageEnhance.Color),
    "contrast": _enhance(ImageEnhance.Contrast),
    "brightness": _enhance(ImageEnhance.Brightness),
    "sharpness": _enhance(ImageEnhance.Sharpness),
    "shear_x": lambda image, drawn: _transform(image, (1, drawn.sign * 0.3 * drawn.level, 0, 0, 1, 0), drawn),
    "shear_y": lambda image, drawn: _transform(image, (1, 0, 0, drawn.sign * 0.3 * drawn.level, 1, 0), drawn),
    "translate_x": lambda image, drawn: _transform(
        image, (1, 0, drawn.sign * 0.45 * drawn.level * image.width, 0, 1, 0), drawn
    ),
    "translate_y": lambda image, drawn: _transform(
        image, (1, 0, 0, 0, 1, drawn.sign * 0.45 * drawn.level * image.height), drawn
    ),
}
NAMES: Final = tuple(POLICY_OPERATIONS)


def draw_level(number: float, magnitude: float, magnitude_std: float) -> float:
    """The magnitude / 10, drawn from a normal distribution and cut off at 0 and 1. number: in [0, 1)."""
    drawn = magnitude
    if magnitude_std > 0:
        drawn += magnitude_std * NormalDist().inv_cdf(max(number, SMALLEST_NUMBER))
    return min(max(drawn, 0.0), MAX_MAGNITUDE) / MAX_MAGNITUDE


def rand_augment_timm(images: Tensor, numbers: npt.NDArray[np.float32], arguments: Mapping[str, Any]) -> Tensor:
    """Up to `num_ops` operations on each image, one after the other. All frames of a clip change alike."""
    channels = images.shape[-3]
    fill = tuple(arguments["fill"]) if channels == 3 else (round(sum(arguments["fill"]) / 3),)
    changed = images.cpu().clone()
    for row, drawn in enumerate(numbers.T.reshape(len(images), -1, DRAWS_PER_OPERATION).tolist()):
        chosen = [_draw(each, fill, arguments) for each in drawn if each[1] < arguments["p"]]
        frames = changed[row].reshape(-1, *changed.shape[-3:])
        for frame in frames if chosen else ():
            image = Image.fromarray(frame.movedim(0, -1).squeeze(-1).contiguous().numpy())
            for name, parameters in chosen:
                image = POLICY_OPERATIONS[name](image, parameters)
            frame.copy_(torch.from_numpy(np.array(image)).view(*frame.shape[1:], channels).movedim(-1, 0))
    return changed.to(images.device)


def _draw(numbers: list[float], fill: tuple[int, ...], arguments: Mapping[str, Any]) -> tuple[str, Drawn]:
    which, _, strength, sign, mode = numbers
    interpolation = arguments["interpolation"]
    if interpolation == "random":
        interpolation = "bilinear" if mode < 0.5 else "bicubic"
    return NAMES[int(which * len(NAMES))], Drawn(
        level=draw_level(strength, arguments["magnitude"], arguments["magnitude_std"]),
        sign=-1 if sign < 0.5 else 1,
        increasing=arguments["increasing"],
        fill=fill,
        interpolation=INTERPOLATIONS[interpolation],
    )
