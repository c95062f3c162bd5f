"""Holds what each operation of data.augment draws for a sample and does to a batch of pixels.

Every number is keyed by (seed, epoch, sample) and the operation's own streams. So it does not depend on the rank, the
worker or the batch, and adding an operation to the list does not change the others. `train.config.augmentations` holds
the names, the arguments and the order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

from train import rng
from train.config.augmentations import Step
from train.data import timm_policy
from train.data.boxes import NUM_BOX_DRAWS, CropDraws, between

Int64Array = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float32]
# images [n, (frames,) channels, height, width]; numbers float32 [draws, n] in [0, 1); the arguments of the step.
Apply = Callable[[Tensor, FloatArray, Mapping[str, Any]], Tensor]
STREAMS_PER_OPERATION: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOperation:
    """The part of an operation that needs torch.

    stream: numbers the operation; never changed, since runs resume with it. draws: random numbers for each sample, by
    the step's arguments.
    """

    stream: int
    draws: Callable[[Mapping[str, Any]], int]
    apply: Apply


def draw_numbers(step: Step, keys: Int64Array, *, seed: int, epoch: int) -> FloatArray:
    """The random numbers of one operation, float32 [draws, n] in [0, 1).

    keys: those of the n samples, as `MicroBatch.augmentation_keys`.
    """
    operation = BATCH_OPERATIONS[step.name]
    first = operation.stream * STREAMS_PER_OPERATION
    streams = np.arange(first, first + operation.draws(step.arguments))[:, None]
    return rng.uniform(rng.AUGMENT, seed, epoch, streams, keys)


def apply_step(images: Tensor, step: Step, keys: Int64Array, *, seed: int, epoch: int) -> Tensor:
    """Apply one operation to images [n, (frames,) channels, height, width] of these samples."""
    numbers = draw_numbers(step, keys, seed=seed, epoch=epoch)
    return BATCH_OPERATIONS[step.name].apply(images, numbers, step.arguments)


# Operations on stored pixels


def _crop_and_resize(images: Tensor, numbers: FloatArray, arguments: Mapping[str, Any]) -> Tensor:
    """Cut a box out of each image and scale it to the size of the image. Whole image files are cut by the reader."""
    height, width = images.shape[-2:]
    draws = CropDraws(numbers, arguments)
    cropped = [
        F.resized_crop(image, *draws.box(index, height, width), size=[height, width], antialias=True)
        for index, image in enumerate(images)
    ]
    return torch.stack(cropped)


def _chosen(numbers: npt.NDArray[Any], probability: float) -> Int64Array:
    """The samples for which the operation acts."""
    return np.flatnonzero(numbers < probability)


def _replace(images: Tensor, rows: Int64Array, change: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """The images with these rows changed.

    change: gets some of these images, and which of `rows` they are; on a CPU so few that they stay in its cache.
    """
    if len(rows) == 0:
        return images
    changed = images.clone()
    if images.device.type != "cpu":
        index = torch.from_numpy(rows).to(images.device)
        changed[index] = change(images[index], slice(0, len(rows)))
        return changed
    at_once = max(1, CACHED_BYTES // images[0].nbytes)
    for first in range(0, len(rows), at_once):
        part = slice(first, first + at_once)
        chosen = rows[part].tolist()
        some = images[chosen] if len(chosen) > 1 else images[chosen[0] : chosen[0] + 1]
        for row, replacement in zip(chosen, change(some, part), strict=True):  # indexed assignment takes longer
            changed[row] = replacement
    return changed


def _flip_horizontally(images: Tensor, numbers: FloatArray, arguments: Mapping[str, Any]) -> Tensor:
    return _replace(images, _chosen(numbers[0], arguments["p"]), lambda part, _: F.horizontal_flip(part))


def _flip_vertically(images: Tensor, numbers: FloatArray, arguments: Mapping[str, Any]) -> Tensor:
    return _replace(images, _chosen(numbers[0], arguments["p"]), lambda part, _: F.vertical_flip(part))


def _rotate_by_90(images: Tensor, numbers: FloatArray, arguments: Mapping[str, Any]) -> Tensor:
    """Turn to the left by a quarter as often as drawn."""
    is_square = images.shape[-2] == images.shape[-1]
    quarters = (numbers[0] * 4).astype(np.int64) if is_square else 2 * (numbers[0] * 2).astype(np.int64)
    for quarter in (1, 2, 3):
        rows = np.flatnonzero(quarters == quarter)
        images = _replace(images, rows, lambda part, _, quarter=quarter: torch.rot90(part, quarter, (-2, -1)))  # type: ignore[misc]
    return images


def _to_gray(images: Tensor, numbers: FloatArray, arguments: Mapping[str, Any]) -> Tensor:
    if images.shape[-3] == 1:
        return images
    return _replace(
        images, _chosen(numbers[0], arguments["p"]), lambda part, _: F.rgb_to_grayscale(part, num_output_channels=3)
    )


# Colour jitter: numbers 0..3 are the strengths of these, 4 their order, 5 whether the sample is changed at all.
CACHED_BYTES: Final = 2**18  # of images that are changed at once on a CPU
JITTERS: Final = ("brightness", "contrast", "saturation", "hue")
JITTER_ORDERS: Final = np.array([*permutations(range(len(JITTERS)))])


def _jitter_colors(images: Tensor, numbers: FloatArray, arguments: Mapping[str, Any]) -> Tensor:
    """Four changes in the order drawn for each sample: at each place, all samples with the same change at once."""
    order = JITTER_ORDERS[(numbers[4] * len(JITTER_ORDERS)).astype(np.int64)]
    acts = numbers[5] < arguments["p"]
    for position in range(len(JITTERS)):
        for jitter, name in enumerate(JITTERS):
            strength = arguments[name]
            rows = np.flatnonzero(acts & (order[:, position] == jitter))
            if strength == 0 or len(rows) == 0:
                continue
            factors = jitter_factors(name, numbers[jitter][rows], strength)
            change = JITTER[name]
            images = _replace(images, rows, lambda part, some, change=change, of=factors: change(part, of[some]))  # type: ignore[misc]
    return images


def jitter_factors(name: str, numbers: npt.NDArray[Any], strength: float) -> npt.NDArray[np.float64]:
    """The factor of each sample: for the hue from -strength to strength, else from 1 - strength (or 0) on."""
    if name == "hue":
        return between(numbers, -strength, strength)
    return between(numbers, max(0.0, 1 - strength), 1 + strength)


def _blend(images: Tensor, other: Tensor | None, factors: npt.NDArray[np.float64]) -> Tensor:
    """factor * images + (1 - factor) * other, in bytes, as torchvision does it for one factor. other None: 0."""
    shape = (-1, *[1] * (images.ndim - 1))
    share, rest = (
        torch.from_numpy(values.astype(np.float32)).to(images.device).view(shape) for values in (factors, 1.0 - factors)
    )
    blended = images.float().mul_(share)
    if other is not None:
        blended.addcmul_(other, rest)
    return blended.clamp_(0, 255).to(torch.uint8)


def _adjust_brightness(images: Tensor, factors: npt.NDArray[np.float64]) -> Tensor:
    return _blend(images, None, factors)


def _adjust_contrast(images: Tensor, factors: npt.NDArray[np.float64]) -> Tensor:
    """Towards the mean gray of the image. It is a sum of whole numbers, so that it does not depend on the batch."""
    gray = F.rgb_to_grayscale(images) if images.shape[-3] == 3 else images
    pixels = gray.shape[-3] * gray.shape[-2] * gray.shape[-1]
    means = gray.sum(dim=(-3, -2, -1), keepdim=True, dtype=torch.int64).double().div_(pixels).float()
    return _blend(images, means, factors)


def _adjust_saturation(images: Tensor, factors: npt.NDArray[np.float64]) -> Tensor:
    return images if images.shape[-3] == 1 else _blend(images, F.rgb_to_grayscale(images).float(), factors)


def _adjust_hue(images: Tensor, factors: npt.NDArray[np.float64]) -> Tensor:
    return torch.stack([F.adjust_hue(image, factor) for image, factor in zip(images, factors.tolist(), strict=True)])


JITTER: Final[Mapping[str, Callable[[Tensor, npt.NDArray[np.float64]], Tensor]]] = {
    "brightness": _adjust_brightness,
    "contrast": _adjust_contrast,
    "saturation": _adjust_saturation,
    "hue": _adjust_hue,
}


# Operations on normalized pixels


def _erase(images: Tensor, numbers: FloatArray, arguments: Mapping[str, Any]) -> Tensor:
    """Fill a box, in place: images are normalized, so 0 is the mean colour and noise has the spread of the pixels."""
    height, width = images.shape[-2:]
    draws = CropDraws(numbers[1 : 1 + NUM_BOX_DRAWS], arguments)
    for row in _chosen(numbers[0], arguments["p"]).tolist():
        if (hole := draws.hole(row, height, width)) is None:
            continue
        top, left, hole_height, hole_width = hole
        box = images[row, ..., top : top + hole_height, left : left + hole_width]
        if arguments["mode"] == "const":
            box.zero_()
        else:
            shape = box.shape if arguments["mode"] == "pixel" else (len(box), *(1 for _ in box.shape[1:]))
            box.copy_(_normal_noise(numbers[1 + NUM_BOX_DRAWS :, row], shape))
    return images


def _normal_noise(seed: npt.NDArray[np.float32], shape: Sequence[int]) -> Tensor:
    """Numbers of the normal distribution, float32 of this shape (Box, Muller). seed: two numbers in [0, 1)."""
    key = [int(part * 2**24) for part in seed]
    radius, angle = rng.uniform(*key, np.arange(2)[:, None], np.arange(math.prod(shape)))
    normal = np.sqrt(-2 * np.log1p(-radius.astype(np.float64))) * np.cos(2 * np.pi * angle.astype(np.float64))
    return torch.from_numpy(normal.astype(np.float32)).view(*shape)


# Policies: one or several operations of a list, drawn for each sample

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


def _fixed(count: int) -> Callable[[Mapping[str, Any]], int]:
    return lambda arguments: count


BATCH_OPERATIONS: Final[Mapping[str, BatchOperation]] = {
    "random_resized_crop": BatchOperation(stream=1, draws=_fixed(NUM_BOX_DRAWS), apply=_crop_and_resize),
    "horizontal_flip": BatchOperation(stream=2, draws=_fixed(1), apply=_flip_horizontally),
    "vertical_flip": BatchOperation(stream=3, draws=_fixed(1), apply=_flip_vertically),
    "rotate90": BatchOperation(stream=4, draws=_fixed(1), apply=_rotate_by_90),
    "color_jitter": BatchOperation(stream=5, draws=_fixed(len(JITTERS) + 2), apply=_jitter_colors),
    "grayscale": BatchOperation(stream=6, draws=_fixed(1), apply=_to_gray),
    "trivial_augment": BatchOperation(stream=8, draws=_fixed(DRAWS_PER_OPERATION), apply=trivial_augment),
    "rand_augment": BatchOperation(
        stream=9,
        draws=lambda arguments: DRAWS_PER_OPERATION * arguments["num_ops"],
        apply=rand_augment,
    ),
    "rand_augment_timm": BatchOperation(
        stream=13,
        draws=lambda arguments: timm_policy.DRAWS_PER_OPERATION * arguments["num_ops"],
        apply=timm_policy.rand_augment_timm,
    ),
    "random_erasing": BatchOperation(
        stream=7,
        draws=lambda arguments: 1 + NUM_BOX_DRAWS + (0 if arguments["mode"] == "const" else 2),
        apply=_erase,
    ),
}
