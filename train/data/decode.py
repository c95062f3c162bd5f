"""Decodes an image file to square RGB pixels of one size.

Of 16-bit images only the upper 8 bits are kept, so images that do not use them are reported. This
module does not import torch.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError

from entrypoint import ExitCode, Failure

# All that Pillow raises for 70,000 damaged files of its main formats.
DECODE_ERRORS: Final = (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError)
HIGH_BIT_DEPTH_MODES: Final = ("I", "F")  # 16-bit PGM files come as I too
PIXELS_PER_MEGAPIXEL: Final = 10**6
EXIF_KEYS: Final = frozenset({"exif", "Raw profile type exif"})  # where Pillow keeps the block; of a TIFF nowhere
# What makes an image upright, by its EXIF orientation.
EXIF_TRANSPOSES: Final[Mapping[object, Image.Transpose]] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# The system's own errors say nothing of the image: skipping it would hide a lost disk.
_NO_PERMISSION = (ExitCode.NO_INPUT, "let this user read the file, or delete it")
_IO_ERROR = (ExitCode.IO, "start again when the file system answers")
_LIMIT_REACHED = (ExitCode.RESOURCE, "set data.workers lower, or raise the limit of open files (ulimit -n)")
OS_ERRORS: Final[Mapping[int | None, tuple[ExitCode, str]]] = {
    errno.ENOENT: (ExitCode.NO_INPUT, "put the file back; while a run lasts, its files must stay"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), _NO_PERMISSION),
    **dict.fromkeys((errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EREMOTEIO), _IO_ERROR),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE, errno.ENOMEM), _LIMIT_REACHED),
}


def decode_image(path: Path, size: int, sample: int, *, draft: bool = True) -> npt.NDArray[np.uint8]:
    """One image, uint8 [size, size, 3]: its shorter side scaled to `size`, the middle of the longer one.

    Args:
        draft: whether a JPEG is decoded at a part of its size first, which is quicker, and gives slightly other pixels.

    Raises:
        Failure: DATA for what is no whole image, NO_INPUT for a file that is gone or not for this user, IO or RESOURCE
            where the system failed; all name path and index.
    """
    try:
        with open_image(path) as image:
            if draft:
                image.draft("RGB", (size, size))
            return np.asarray(center_crop_and_resize(to_rgb(image), size))
    except DECODE_ERRORS as error:
        raise unreadable_image_failure(path, sample, error) from error


def open_image(path: Path) -> Image.Image:
    """The image, not yet decoded. Raises one of DECODE_ERRORS; also for a pipe, which would be waited for."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("no regular file")
    return Image.open(path)


def to_rgb(image: Image.Image) -> Image.Image:
    """Upright, as its EXIF orientation says, in 8 bits and three channels.

    Of 16 bits the upper 8 are taken: Pillow itself would make nearly all white.

    Raises:
        ValueError: for 32 bits, whose range nobody knows.
    """
    flat = _to_8_bit_rgb(image)  # which loads it: only then a TIFF has turned itself, and a PNG has told all its tags
    turn = _exif_transpose(image)
    return flat if turn is None else flat.transpose(turn)


def _exif_transpose(image: Image.Image) -> Image.Transpose | None:
    """None too where the tags are damaged: the pixels may be whole."""
    if EXIF_KEYS.isdisjoint(image.info):
        return None
    try:
        return EXIF_TRANSPOSES.get(image.getexif().get(ExifTags.Base.Orientation))
    except Exception:  # Pillow promises nothing of what it raises here
        return None


def is_high_bit_depth(image: Image.Image) -> bool:
    """Whether its pixels have more than 8 bits."""
    return image.mode in HIGH_BIT_DEPTH_MODES or image.mode.startswith("I;16")


def _to_8_bit_rgb(image: Image.Image) -> Image.Image:
    if not is_high_bit_depth(image):
        return image.convert("RGB")
    values = np.asarray(image)
    if image.mode == "F" or values.max() > 0xFFFF or values.min() < 0:
        raise ValueError(f"pixels of 32 bits (mode {image.mode}): save it with 8 or 16 bits")
    return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")


def unreadable_image_failure(path: Path, sample: int, error: Exception) -> Failure:
    """What an error of Pillow's or of the system's means, with the way to mend it."""
    number = error.errno if isinstance(error, OSError) else None
    code, fix = OS_ERRORS.get(
        number,
        (ExitCode.DATA, "replace or delete it, or skip it with data.max_bad_images=1 (`train data check` finds all)"),
    )
    reason = "it is gone" if number == errno.ENOENT else str(error)
    if isinstance(error, Image.DecompressionBombError):
        reason, fix = (
            _describe_too_large(reason),
            "cut it into tiles, or scale it down; or skip it with data.max_bad_images=1",
        )
    if isinstance(error, UnidentifiedImageError):  # whose text repeats the path
        reason = "an empty file" if _is_empty_file(path) else "no image that Pillow knows"
    return Failure(f"image {sample} cannot be read", found=f"{path}: {reason}", fix=fix, code=code)


def _describe_too_large(reason: str) -> str:
    """Pillow's text takes it for an attack; a scene seen by a satellite, or a slide, is none."""
    size, most = map(int, re.findall(r"(\d+) pixels", reason))
    return f"{-(-size // PIXELS_PER_MEGAPIXEL)} megapixels, and at most {most // PIXELS_PER_MEGAPIXEL} are read"


def _is_empty_file(path: Path) -> bool:
    """A download or a copy that was cut at once. False where it is gone since."""
    with suppress(OSError):
        return path.stat().st_size == 0
    return False


def center_crop_and_resize(image: Image.Image, size: int) -> Image.Image:
    """Its middle, scaled: whole pixels are cut, so that all who read an image cut the same."""
    if image.size == (size, size):
        return image
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))


NUM_CHECKED_IMAGES: Final = 8  # images, spread over all
MAX_16_BIT_VALUE: Final = 0xFFFF
MAX_BLACK_VALUE: Final = 0xFF  # up to this nothing is left
MAX_12_BIT_VALUE: Final = 0xFFF  # 12 bits, as cameras and scanners have them: 16 of 256 gray levels are left


def highest_values(paths: Sequence[str] | Sequence[Path]) -> list[int | None]:
    """The highest value of some of these images; None for one of 8 bits. Of broken ones nothing is said here."""
    found = []
    for place in np.unique(np.linspace(0, len(paths) - 1, NUM_CHECKED_IMAGES).astype(int)) if len(paths) else ():
        with suppress(*DECODE_ERRORS), open_image(Path(paths[int(place)])) as image:
            found.append(highest_value(image))
    return found


def highest_value(image: Image.Image) -> int | None:
    """The highest value of an image of 16 bits, or of 32 that are read as 16; None for any other image."""
    if image.mode == "F" or not is_high_bit_depth(image):
        return None
    value = int(np.asarray(image).max())
    return value if 0 <= value <= MAX_16_BIT_VALUE else None


def bit_depth_warnings(values: Iterable[int | None], name: str) -> tuple[str, ...]:
    """What to say of a set, of which some images have these highest values: nothing, or one warning.

    One dark image is no matter, and of those of 8 bits nothing is known: only where all are alike the set is refused.

    Raises:
        Failure: DATA, where all of them would be black.
    """
    looked = list(values)
    if looked and all(value is not None and 0 < value <= MAX_BLACK_VALUE for value in looked):
        raise Failure(
            f"{name} holds images of 16 bits that would all be read as black",
            found=_describe_values([value for value in looked if value is not None]),
            expected=f"values up to {MAX_16_BIT_VALUE:,}, of which the upper 8 bits are read",
            fix="save them anew with 8 bits",
            code=ExitCode.DATA,
        )
    return tuple(f"{name}: {warning}" for warning in gray_level_warnings(looked))


def gray_level_warnings(values: Iterable[int | None]) -> tuple[str, ...]:
    """The same as a warning, whatever the values."""
    deep = [value for value in values if value is not None]
    top = max(deep, default=0)
    if not 0 < top <= MAX_12_BIT_VALUE:
        return ()
    levels = (top >> 8) + 1
    left = f"{levels} gray levels are left" if levels > 1 else "nothing but black is left"
    fix = (
        f"multiply them by {MAX_16_BIT_VALUE // top} and save them anew" if levels > 1 else "save them anew with 8 bits"
    )
    return (f"{_describe_values(deep)}: of 16 bits the upper 8 are read, {left}. fix: {fix}",)


def _describe_values(values: Sequence[int]) -> str:
    images = f"{len(values)} images of 16 bits" if len(values) > 1 else "1 image of 16 bits"
    return f"{images} looked at, no value above {max(values):,} of {MAX_16_BIT_VALUE:,}"
