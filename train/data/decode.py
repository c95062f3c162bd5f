"""From an image file to the pixels that are trained on: RGB, square, of one size. No torch."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError

from entrypoint import ExitCode, Failure

# All that Pillow raises for 70,000 damaged files of its main formats.
BROKEN: Final = (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError)
DEEP: Final = ("I", "F")  # 16-bit PGM files come as I too
MEGA: Final = 10**6
TAGGED: Final = frozenset({"exif", "Raw profile type exif"})  # where Pillow keeps the block; of a TIFF nowhere
# What makes an image upright, by its EXIF orientation.
TURNS: Final[Mapping[object, Image.Transpose]] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# The system's own errors say nothing of the image: skipping it would hide a lost disk.
_AWAY = (ExitCode.NO_INPUT, "let this user read the file, or delete it")
_DISK = (ExitCode.IO, "start again when the file system answers")
_FULL = (ExitCode.RESOURCE, "set data.workers lower, or raise the limit of open files (ulimit -n)")
SYSTEM: Final[Mapping[int | None, tuple[ExitCode, str]]] = {
    errno.ENOENT: (ExitCode.NO_INPUT, "put the file back; while a run lasts, its files must stay"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), _AWAY),
    **dict.fromkeys((errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EREMOTEIO), _DISK),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE, errno.ENOMEM), _FULL),
}


def decode(path: Path, size: int, sample: int, *, draft: bool = True) -> npt.NDArray[np.uint8]:
    """One image, uint8 [size, size, 3]: its shorter side scaled to `size`, the middle of the longer one.

    Args:
        draft: whether a JPEG is decoded at a part of its size first, which is quicker, and gives slightly other pixels.

    Raises:
        Failure: DATA for what is no whole image, NO_INPUT for a file that is gone or not for this user, IO or RESOURCE
            where the system failed; all name path and index.
    """
    try:
        with opened(path) as image:
            if draft:
                image.draft("RGB", (size, size))
            return np.asarray(square(rgb(image), size))
    except BROKEN as error:
        raise unreadable(path, sample, error) from error


def opened(path: Path) -> Image.Image:
    """The image, not yet decoded. Raises one of BROKEN; also for a pipe, which would be waited for."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("no regular file")
    return Image.open(path)


def rgb(image: Image.Image) -> Image.Image:
    """Upright, as its EXIF orientation says, in 8 bits and three channels.

    Of 16 bits the upper 8 are taken: Pillow itself would make nearly all white.

    Raises:
        ValueError: for 32 bits, whose range nobody knows.
    """
    flat = _flat(image)  # which loads it: only then a TIFF has turned itself, and a PNG has told all its tags
    turn = _turn(image)
    return flat if turn is None else flat.transpose(turn)


def _turn(image: Image.Image) -> Image.Transpose | None:
    """None too where the tags are damaged: the pixels may be whole."""
    if TAGGED.isdisjoint(image.info):
        return None
    try:
        return TURNS.get(image.getexif().get(ExifTags.Base.Orientation))
    except Exception:  # Pillow promises nothing of what it raises here
        return None


def is_deep(image: Image.Image) -> bool:
    """Whether its pixels have more than 8 bits."""
    return image.mode in DEEP or image.mode.startswith("I;16")


def _flat(image: Image.Image) -> Image.Image:
    if not is_deep(image):
        return image.convert("RGB")
    values = np.asarray(image)
    if image.mode == "F" or values.max() > 0xFFFF or values.min() < 0:
        raise ValueError(f"pixels of 32 bits (mode {image.mode}): save it with 8 or 16 bits")
    return Image.fromarray((values >> 8).astype(np.uint8)).convert("RGB")


def unreadable(path: Path, sample: int, error: Exception) -> Failure:
    """What an error of Pillow's or of the system's means, with the way to mend it."""
    number = error.errno if isinstance(error, OSError) else None
    code, fix = SYSTEM.get(
        number,
        (ExitCode.DATA, "replace or delete it, or skip it with data.max_bad_images=1 (`train data check` finds all)"),
    )
    reason = "it is gone" if number == errno.ENOENT else str(error)
    if isinstance(error, Image.DecompressionBombError):
        reason, fix = _too_large(reason), "cut it into tiles, or scale it down; or skip it with data.max_bad_images=1"
    if isinstance(error, UnidentifiedImageError):  # whose text repeats the path
        reason = "an empty file" if _empty(path) else "no image that Pillow knows"
    return Failure(f"image {sample} cannot be read", found=f"{path}: {reason}", fix=fix, code=code)


def _too_large(reason: str) -> str:
    """Pillow's text takes it for an attack; a scene seen by a satellite, or a slide, is none."""
    size, most = map(int, re.findall(r"(\d+) pixels", reason))
    return f"{-(-size // MEGA)} megapixels, and at most {most // MEGA} are read"


def _empty(path: Path) -> bool:
    """A download or a copy that was cut at once. False where it is gone since."""
    with suppress(OSError):
        return path.stat().st_size == 0
    return False


def square(image: Image.Image, size: int) -> Image.Image:
    """Its middle, scaled: whole pixels are cut, so that all who read an image cut the same."""
    if image.size == (size, size):
        return image
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + side, top + side))
