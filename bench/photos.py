"""This module writes JPEG files of ImageNet's kind: 500 x 375 pixels, about 95 kB; drawn, or cut from photographs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from entrypoint import ExitCode, Failure

LONG_SIDE, SHORT_SIDE = 500, 375
MEAN_BYTES: Final = 95_000
QUALITIES: Final = range(60, 98)
CUT_QUALITY: Final = 95
CUTS: Final = 4  # for each that is kept: many parts of photographs are blurred, and have few bytes
MIN_SHARE: Final = 0.6  # of a photograph's width or height, so that what is scaled down is sharp
CLASSES: Final = ("first", "second")
GRAY_SHARE: Final = 0.9  # of the contrast that all three channels have in common, as in most photographs


def write_photos(folder: Path, number: int, source: Path | None = None) -> int:
    """Write `number` photographs, about half of them upright, into two classes; return their mean size in bytes.

    source: a folder of large JPEG files from which they are cut; without it they are drawn.
    """
    contents = cut_photos(source, number) if source else draw_photos(number)
    for name in CLASSES:
        (folder / name).mkdir(parents=True)
    for seed, content in enumerate(contents):
        (folder / CLASSES[seed // 2 % 2] / f"{seed:05d}.jpg").write_bytes(content)
    return round(np.mean([len(content) for content in contents]))


def cut_photos(source: Path, number: int) -> list[bytes]:
    """JPEG files of random parts of the photographs of a folder, scaled down: those of many that have about MEAN_BYTES
    on average.

    Raises:
        Failure: NO_INPUT, if no photograph is large enough.
    """
    files = [path for path in sorted(source.rglob("*")) if _is_large_jpeg(path)]
    if not files:
        raise Failure(
            "there are no photographs to cut",
            found=f"no JPEG file of {2 * SHORT_SIDE} pixels in {source}",
            fix="give a folder of photographs: --photos DIR",
            code=ExitCode.NO_INPUT,
        )
    rng = np.random.default_rng(0)
    cuts = list[bytes]()
    for count, path in zip(np.bincount(np.arange(CUTS * number) % len(files)), files, strict=False):
        with Image.open(path) as photo:
            pixels = photo.convert("RGB")
        cuts += [encode(cut_photo(pixels, rng, upright=bool(turn % 2)), CUT_QUALITY) for turn in range(count)]
    cuts.sort(key=len)
    means = np.convolve([len(cut) for cut in cuts], np.full(number, 1 / number), "valid")
    first = int(np.abs(means - MEAN_BYTES).argmin())
    return [cuts[first + position] for position in rng.permutation(number)]


def _is_large_jpeg(path: Path) -> bool:
    if path.suffix.lower() not in (".jpg", ".jpeg") or path.is_symlink() or not path.is_file():
        return False
    with Image.open(path) as image:
        return min(image.size) >= 2 * SHORT_SIDE


def cut_photo(photo: Image.Image, rng: np.random.Generator, *, upright: bool = False) -> Image.Image:
    """A part at a random position, of MIN_SHARE to all of the largest that has the shape."""
    width, height = (SHORT_SIDE, LONG_SIDE) if upright else (LONG_SIDE, SHORT_SIDE)
    scale = rng.uniform(MIN_SHARE, 1) * min(photo.width / width, photo.height / height)
    left, top = rng.uniform(0, photo.width - scale * width), rng.uniform(0, photo.height - scale * height)
    box = (left, top, left + scale * width, top + scale * height)
    return photo.resize((width, height), Image.Resampling.LANCZOS, box=box, reducing_gap=3.0)


def draw_photos(number: int) -> list[bytes]:
    """JPEG files of drawn photographs, with the quality with which they have about MEAN_BYTES."""
    images = [draw_photo(seed, upright=bool(seed % 2)) for seed in range(number)]
    quality = choose_quality(images[:4])
    return [encode(image, quality) for image in images]


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
