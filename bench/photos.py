"""This module writes JPEG files of ImageNet's kind: 500 x 375 pixels, about 95 kB, with the spectrum of photographs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

LONG_SIDE, SHORT_SIDE = 500, 375
MEAN_BYTES: Final = 95_000
QUALITIES: Final = range(60, 98)
CLASSES: Final = ("first", "second")
GRAY_SHARE: Final = 0.9  # of the contrast that all three channels have in common, as in most photographs


def write_photos(folder: Path, number: int) -> int:
    """Write `number` drawn photographs, half of them upright, into two classes; return their mean size in bytes."""
    images = [draw_photo(seed, upright=bool(seed % 2)) for seed in range(number)]
    quality = choose_quality(images[:4])
    sizes = []
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
    for seed, image in enumerate(images):
        content = encode(image, quality)
        (folder / CLASSES[seed // 2 % 2] / f"{seed:05d}.jpg").write_bytes(content)
        sizes.append(len(content))
    return round(np.mean(sizes))


def draw_photo(seed: int, *, upright: bool = False) -> Image.Image:
    """Noise whose amplitude falls as 1 / frequency, as it does in photographs."""
    rng = np.random.default_rng(seed)
    height, width = (LONG_SIDE, SHORT_SIDE) if upright else (SHORT_SIDE, LONG_SIDE)
    gray = _draw_plane(rng, height, width)
    planes = [GRAY_SHARE * gray + (1 - GRAY_SHARE) * _draw_plane(rng, height, width) for _ in range(3)]
    return Image.fromarray(np.clip(118 + 60 * np.stack(planes, -1), 0, 255).astype(np.uint8))


def _draw_plane(rng: np.random.Generator, height: int, width: int) -> npt.NDArray[np.float64]:
    """Of mean 0 and standard deviation 1, [height, width]."""
    frequencies = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequencies[0, 0] = np.inf
    plane = np.fft.irfft2(np.fft.rfft2(rng.standard_normal((height, width))) / frequencies, (height, width))
    return np.asarray(plane / plane.std())


def choose_quality(images: Sequence[Image.Image]) -> int:
    """The JPEG quality with which these images have about MEAN_BYTES."""
    return min(QUALITIES, key=lambda quality: abs(np.mean([len(encode(i, quality)) for i in images]) - MEAN_BYTES))


def encode(image: Image.Image, quality: int) -> bytes:
    """The JPEG file."""
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return stream.getvalue()
