"""Holds the 14 operations of RandAugment and TrivialAugment Wide, and how their strength grows.

Cubuk et al.: RandAugment (2020); Müller, Hutter: TrivialAugment (2021). The operations and strengths are those of
torchvision's classes of these names; tests compare the pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

NUM_LEVELS: Final = 31  # strengths from 0 to 30
RAND_AUGMENT_SHIFT: Final = 150 / 331  # of the side: 150 pixels of images of 331
TRIVIAL_AUGMENT_SHIFT: Final = 32  # pixels, whatever the size
MAX_VALUE: Final = 255

# An image [(frames,) channels, height, width], a strength, and how moved pixels are interpolated.
Change = Callable[[Tensor, float, InterpolationMode], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOperation:
    """One of the operations. signed: whether its strength is negative for half of the samples.

    rand, trivial: the strength of the highest level, of RandAugment and of TrivialAugment Wide. Strengths grow evenly
    from `start`; those that are whole numbers are rounded. A shift of RandAugment is a share of the side.
    """

    change: Change
    rand: float = 0.0
    trivial: float = 0.0
    start: float = 0.0
    signed: bool = False
    rounds: bool = False


def _affine(image: Tensor, **changes: Any) -> Tensor:
    changed: Tensor = F.affine(
        image, **({"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]} | changes)
    )
    return changed


def _slope(strength: float) -> float:
    return math.degrees(math.atan(strength))


# In the order of torchvision's tables: an operation is drawn by its place.
POLICY_OPERATIONS: Final[Mapping[str, PolicyOperation]] = {
    "identity": PolicyOperation(change=lambda image, strength, mode: image),
    "shear_x": PolicyOperation(
        change=lambda image, strength, mode: _affine(
            image, shear=[_slope(strength), 0.0], center=[0, 0], interpolation=mode
        ),
        rand=0.3,
        trivial=0.99,
        signed=True,
    ),
    "shear_y": PolicyOperation(
        change=lambda image, strength, mode: _affine(
            image, shear=[0.0, _slope(strength)], center=[0, 0], interpolation=mode
        ),
        rand=0.3,
        trivial=0.99,
        signed=True,
    ),
    "translate_x": PolicyOperation(
        change=lambda image, strength, mode: _affine(image, translate=[int(strength), 0], interpolation=mode),
        rand=RAND_AUGMENT_SHIFT,
        trivial=TRIVIAL_AUGMENT_SHIFT,
        signed=True,
    ),
    "translate_y": PolicyOperation(
        change=lambda image, strength, mode: _affine(image, translate=[0, int(strength)], interpolation=mode),
        rand=RAND_AUGMENT_SHIFT,
        trivial=TRIVIAL_AUGMENT_SHIFT,
        signed=True,
    ),
    "rotate": PolicyOperation(
        change=lambda image, strength, mode: F.rotate(image, angle=strength, interpolation=mode),
        rand=30.0,
        trivial=135.0,
        signed=True,
    ),
    "brightness": PolicyOperation(
        change=lambda image, strength, mode: F.adjust_brightness(image, 1.0 + strength),
        rand=0.9,
        trivial=0.99,
        signed=True,
    ),
    "color": PolicyOperation(
        change=lambda image, strength, mode: F.adjust_saturation(image, 1.0 + strength),
        rand=0.9,
        trivial=0.99,
        signed=True,
    ),
    "contrast": PolicyOperation(
        change=lambda image, strength, mode: F.adjust_contrast(image, 1.0 + strength),
        rand=0.9,
        trivial=0.99,
        signed=True,
    ),
    "sharpness": PolicyOperation(
        change=lambda image, strength, mode: F.adjust_sharpness(image, 1.0 + strength),
        rand=0.9,
        trivial=0.99,
        signed=True,
    ),
    "posterize": PolicyOperation(
        change=lambda image, strength, mode: F.posterize(image, bits=int(strength)),
        start=8,
        rand=4,
        trivial=2,
        rounds=True,
    ),
    "solarize": PolicyOperation(
        change=lambda image, strength, mode: F.solarize(image, threshold=MAX_VALUE * strength), start=1.0
    ),
    "autocontrast": PolicyOperation(change=lambda image, strength, mode: F.autocontrast(image)),
    "equalize": PolicyOperation(change=lambda image, strength, mode: F.equalize(image)),
}
NAMES: Final = tuple(POLICY_OPERATIONS)
DRAWS_PER_OPERATION: Final = 3  # which, how strong, which sign


def rand_augment_strength(name: str, level: int, height: int, width: int) -> float:
    """The strength of RandAugment's operation at a level from 0 to 30, not yet signed."""
    side = {"translate_x": width, "translate_y": height}.get(name, 1)
    return _strength(POLICY_OPERATIONS[name], POLICY_OPERATIONS[name].rand * side, level)


def trivial_augment_strength(name: str, level: int) -> float:
    """The strength of TrivialAugment Wide's operation at a level from 0 to 30, not yet signed."""
    return _strength(POLICY_OPERATIONS[name], POLICY_OPERATIONS[name].trivial, level)


def _strength(operation: PolicyOperation, highest: float, level: int) -> float:
    """As a float32, because torchvision's tables are."""
    if operation.rounds:
        steps = torch.arange(NUM_LEVELS) / ((NUM_LEVELS - 1) / (operation.start - highest))
        return float((operation.start - steps).round()[level])
    return float(torch.linspace(operation.start, highest, NUM_LEVELS)[level])


def _change(image: Tensor, name: str, strength: float, sign: float, arguments: Mapping[str, Any]) -> Tensor:
    operation, mode = POLICY_OPERATIONS[name], InterpolationMode(arguments["interpolation"])
    return operation.change(image, -strength if operation.signed and sign < 0.5 else strength, mode)


def rand_augment(images: Tensor, numbers: npt.NDArray[np.float32], arguments: Mapping[str, Any]) -> Tensor:
    """`num_ops` operations on each image, one after the other, all with the same level."""
    height, width = images.shape[-2:]
    changed = []
    for image, drawn in zip(images, numbers.T.reshape(len(images), -1, DRAWS_PER_OPERATION), strict=True):
        for which, _, sign in drawn.tolist():
            name = NAMES[int(which * len(NAMES))]
            strength = rand_augment_strength(name, arguments["magnitude"], height, width)
            image = _change(image, name, strength, sign, arguments)
        changed.append(image)
    return torch.stack(changed)


def trivial_augment(images: Tensor, numbers: npt.NDArray[np.float32], arguments: Mapping[str, Any]) -> Tensor:
    """One operation of a random level on each image."""
    changed = []
    for image, (which, level, sign) in zip(images, numbers.T.tolist(), strict=True):
        name = NAMES[int(which * len(NAMES))]
        strength = trivial_augment_strength(name, int(level * NUM_LEVELS))
        changed.append(_change(image, name, strength, sign, arguments))
    return torch.stack(changed)
