"""Decodes an image file to RGB or gray pixels of one size.

Of 16-bit images only the upper 8 bits are kept, so images that do not use them are reported. This
module does not import torch.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, UnidentifiedImageError

from entrypoint import ExitCode, Failure, shell_command
from train.data.class_folders import CONVERT_FIX, UNSUPPORTED_IMAGE_SUFFIXES
from train.data.preprocessing import DEFAULT_PREPROCESSING, FitName, Preprocessing
from train.data.shape import ImageSize, height_and_width

# All that Pillow raised for 70,000 damaged files of its main formats.
DECODE_ERRORS: Final = (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError)
HIGH_BIT_DEPTH_MODES: Final = ("I", "F")  # Pillow opens 16-bit PGM files as I, too
GRAY_MODES: Final = ("1", "L", "LA")  # of 8 bits or less
MAX_BYTE: Final = 255
PIXELS_PER_MEGAPIXEL: Final = 10**6
EXIF_KEYS: Final = frozenset(
    {"exif", "Raw profile type exif"}
)  # keys of Image.info for the EXIF block; a TIFF has none
# The transposition that makes an image upright, by its EXIF orientation.
EXIF_TRANSPOSES: Final[Mapping[object, Image.Transpose]] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
QUARTER_TURNS: Final = (
    Image.Transpose.TRANSPOSE,
    Image.Transpose.ROTATE_270,
    Image.Transpose.TRANSVERSE,
    Image.Transpose.ROTATE_90,
)
# These errors are the system's, not the image's: skipping the image would hide a lost disk.
# `files.ERRNO_MEANINGS` is a table of its own, for the run's own files: its fixes (run.output_dir, free space) do not
# help to read an image, and there any other number is an input/output error.
_NO_PERMISSION = (ExitCode.NO_INPUT, "let this user read the file, or delete it")
_IO_ERROR = (ExitCode.IO, "start again when the file system answers")
_LIMIT_REACHED = (ExitCode.RESOURCE, "set data.workers lower, or raise the limit of open files (ulimit -n)")
OS_ERRORS: Final[Mapping[int | None, tuple[ExitCode, str]]] = {
    errno.ENOENT: (ExitCode.NO_INPUT, "put the file back; while a run lasts, its files must stay"),
    **dict.fromkeys((errno.EACCES, errno.EPERM), _NO_PERMISSION),
    **dict.fromkeys((errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EREMOTEIO), _IO_ERROR),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE, errno.ENOMEM), _LIMIT_REACHED),
}


@dataclass(frozen=True, slots=True)
class ImageBytes:
    """An image that was read already, as a part of a larger file. name: for messages."""

    name: str
    data: bytes

    def __str__(self) -> str:
        return self.name


ImageFile = Path | ImageBytes


def decode_image(
    path: ImageFile,
    size: ImageSize,
    sample: int,
    preprocessing: Preprocessing = DEFAULT_PREPROCESSING,
    *,
    draft: bool = True,
    channels: int = 3,
) -> npt.NDArray[np.uint8]:
    """Decode one image, and fit it to uint8 [height, width, channels].

    Args:
        preprocessing: how an image of another shape is fitted, see `fit_image`.
        draft: whether a JPEG may be decoded at a reduced size first, unless data.decode is exact. This is faster, and
            the pixels differ.
        channels: 3 for RGB, 1 for gray.

    Raises:
        Failure: DATA for a damaged image, NO_INPUT for a file that is gone or that this user may not read, IO or
            RESOURCE for an error of the system; all name path and index.
    """
    try:
        with open_image(path) as image:
            if draft and preprocessing.decode != "exact":
                image.draft("RGB", _draft_size(image, size, preprocessing))
            return as_pixels(fit_image(to_8_bits(image, channels), size, preprocessing), channels)
    except DECODE_ERRORS as error:
        raise unreadable_image_failure(path, sample, error) from error


def _draft_size(image: Image.Image, size: ImageSize, preprocessing: Preprocessing) -> tuple[int, int]:
    """The (width, height) to which the whole image is scaled at last, before it is turned upright."""
    height, width = height_and_width(size)
    if width != height and exif_transpose(image) in QUARTER_TURNS:
        height, width = width, height
    return scaled_size(image.size, (height, width), preprocessing)


def open_image(path: ImageFile) -> Image.Image:
    """Open an image without decoding it. Raises one of DECODE_ERRORS; also for a pipe, where reading would block."""
    if isinstance(path, ImageBytes):
        return Image.open(io.BytesIO(path.data))
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("no regular file")
    return Image.open(path)


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert to 8 bits and three channels, and turn it upright by its EXIF orientation.

    Of 16 bits the upper 8 are taken: Pillow itself would clip nearly all pixels to white.

    Raises:
        ValueError: for 32 bits, whose range of values is unknown.
    """
    return to_8_bits(image, 3)


def to_8_bits(image: Image.Image, channels: int) -> Image.Image:
    """As `to_rgb`; a gray image stays gray if it gets one channel. `as_pixels` mixes colours, after they are scaled."""
    mode = "L" if channels == 1 and (image.mode in GRAY_MODES or is_high_bit_depth(image)) else "RGB"
    converted = _with_8_bits(image).convert(mode)  # loads it: before that a TIFF is not turned, a PNG lacks tags
    transpose = exif_transpose(image)
    return converted if transpose is None else converted.transpose(transpose)


def as_pixels(image: Image.Image, channels: int) -> npt.NDArray[np.uint8]:
    """The pixels of an RGB or gray image, uint8 [height, width, channels]. Gray is the luma of ITU-R 601-2."""
    return np.asarray(image.convert("L"))[..., None] if channels == 1 else np.asarray(image)


def exif_transpose(image: Image.Image) -> Image.Transpose | None:
    """The transposition of its EXIF orientation. None also for damaged tags: the pixels may be intact."""
    if EXIF_KEYS.isdisjoint(image.info):
        return None
    try:
        return EXIF_TRANSPOSES.get(image.getexif().get(ExifTags.Base.Orientation))
    except Exception:  # Pillow does not document what it raises here
        return None


def is_high_bit_depth(image: Image.Image) -> bool:
    """Whether its pixels have more than 8 bits."""
    return image.mode in HIGH_BIT_DEPTH_MODES or image.mode.startswith("I;16")


def _with_8_bits(image: Image.Image) -> Image.Image:
    if not is_high_bit_depth(image):
        return image
    values = np.asarray(image)
    if image.mode == "F" or values.max() > 0xFFFF or values.min() < 0:
        raise ValueError(f"pixels of 32 bits (mode {image.mode}): save it with 8 or 16 bits")
    return Image.fromarray((values >> 8).astype(np.uint8))


def read_image(path: ImageFile) -> ImageBytes:
    """All bytes of an image, by one open and one read. Raises as `open_image`."""
    if isinstance(path, ImageBytes):
        return path
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # which would wait for a pipe otherwise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("no regular file")
        data = os.read(handle, status.st_size)
        while len(data) < status.st_size and (more := os.read(handle, status.st_size - len(data))):
            data += more
        return ImageBytes(str(path), data)
    finally:
        os.close(handle)


def unreadable_image_failure(path: ImageFile, sample: int, error: Exception) -> Failure:
    """Translate an error of Pillow or of the system into a Failure with its fix."""
    number = error.errno if isinstance(error, OSError) else None
    code, fix = OS_ERRORS.get(
        number,
        (
            ExitCode.DATA,
            "replace or delete it, or skip it with data.max_bad_images=1 "
            f"(`{shell_command('train data check', same_config=True)}` finds all)",
        ),
    )
    reason = "it is gone" if number == errno.ENOENT else str(error)
    if isinstance(error, Image.DecompressionBombError):
        reason, fix = (
            _describe_too_large(reason),
            "cut it into tiles, or scale it down; or skip it with data.max_bad_images=1",
        )
    if isinstance(error, UnidentifiedImageError):  # whose text repeats the path
        reason = "an empty file" if _is_empty_file(path) else "no image that Pillow knows"
        fix = CONVERT_FIX if str(path).lower().endswith(UNSUPPORTED_IMAGE_SUFFIXES) else fix
    return Failure(f"image {sample} cannot be read", found=f"{path}: {reason}", fix=fix, code=code)


def _describe_too_large(reason: str) -> str:
    """Replace Pillow's text, which calls the image an attack: it may be a satellite scene or a slide."""
    size, max_pixels = map(int, re.findall(r"(\d+) pixels", reason))
    return f"{-(-size // PIXELS_PER_MEGAPIXEL)} megapixels, and at most {max_pixels // PIXELS_PER_MEGAPIXEL} are read"


def _is_empty_file(path: ImageFile) -> bool:
    """Whether the file has no bytes, as after a failed copy. False if it is gone by now."""
    if isinstance(path, ImageBytes):
        return not path.data
    with suppress(OSError):
        return path.stat().st_size == 0
    return False


RESAMPLING: Final = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
WidthHeight = tuple[int, int]  # Pillow's order


def fit_image(image: Image.Image, size: ImageSize, preprocessing: Preprocessing = DEFAULT_PREPROCESSING) -> Image.Image:
    """The image in this size: its central part, the whole image with a border, or the whole image distorted."""
    height, width = height_and_width(size)
    return FITS[preprocessing.fit].apply(image, (width, height), preprocessing)


def scaled_size(image: WidthHeight, size: ImageSize, preprocessing: Preprocessing) -> WidthHeight:
    """The (width, height) that the whole image would have in the scale of the fitted one."""
    height, width = height_and_width(size)
    return FITS[preprocessing.fit].scaled_size(image, (width, height), preprocessing)


def is_enlarged(image: WidthHeight, size: ImageSize, preprocessing: Preprocessing) -> bool:
    """Whether an image of this (width, height) has fewer pixels than `size` needs along one side."""
    scaled = scaled_size(image, size, replace(preprocessing, crop_ratio=1.0))
    return scaled[0] > image[0] or scaled[1] > image[1]


def kept_share(image: WidthHeight, size: ImageSize) -> float:
    """The share of its area that an image of this (width, height) keeps if the largest central part is cut out."""
    height, width = height_and_width(size)
    crop_width, crop_height = _crop_size(image, (width, height))
    return crop_width * crop_height / (image[0] * image[1])


def _crop_size(image: WidthHeight, target: WidthHeight) -> WidthHeight:
    """The largest part, in whole pixels, that has the shape of `target`."""
    (width, height), (target_width, target_height) = image, target
    return (
        max(1, min(width, round(height * target_width / target_height))),
        max(1, min(height, round(width * target_height / target_width))),
    )


def _center_crop_and_resize(image: Image.Image, target: WidthHeight, preprocessing: Preprocessing) -> Image.Image:
    """The largest central part, scaled. Whole pixels are cropped, so that every reader crops the same.

    With a crop_ratio below 1 the image is scaled first and cropped then, as torchvision and timm do it.
    """
    resampling = RESAMPLING[preprocessing.interpolation]
    if preprocessing.crop_ratio < 1:
        scaled = image.resize(_covering_size(image.size, target, preprocessing), resampling)
        left, top = round((scaled.width - target[0]) / 2), round((scaled.height - target[1]) / 2)
        return scaled.crop((left, top, left + target[0], top + target[1]))
    if image.size == target:
        return image
    width, height = _crop_size(image.size, target)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.resize(target, resampling, box=(left, top, left + width, top + height))


def covered_size(target: WidthHeight, preprocessing: Preprocessing) -> WidthHeight:
    """`target` / crop_ratio in whole pixels, rounded down, as by timm.

    The small addition is for ratios such as 224 / 232, whose quotient may be a little below the whole number.
    """
    width, height = (int(length / preprocessing.crop_ratio + 1e-6) for length in target)
    return width, height


def _covering_size(image: WidthHeight, target: WidthHeight, preprocessing: Preprocessing) -> WidthHeight:
    """The smallest size in the image's shape that covers `covered_size`. Rounded down, as by timm."""
    least_width, least_height = covered_size(target, preprocessing)
    width, height = image
    if height * least_width <= width * least_height:
        return int(least_height * width / height), least_height
    return least_width, int(least_width * height / width)


def _resize_and_pad(image: Image.Image, target: WidthHeight, preprocessing: Preprocessing) -> Image.Image:
    """The whole image in the middle, and around it the mean, which the normalization makes about 0."""
    scaled = image.resize(_inner_size(image.size, target, preprocessing), RESAMPLING[preprocessing.interpolation])
    padded = Image.new(image.mode, target, fill_color(preprocessing, len(image.getbands())))
    padded.paste(scaled, (round((target[0] - scaled.width) / 2), round((target[1] - scaled.height) / 2)))
    return padded


def _inner_size(image: WidthHeight, target: WidthHeight, preprocessing: Preprocessing) -> WidthHeight:
    """The largest size in the image's shape that fits into `target`, as in Pillow's ImageOps.contain."""
    (width, height), (target_width, target_height) = image, target
    if width * target_height > target_width * height:
        return target_width, max(1, round(height / width * target_width))
    return max(1, round(width / height * target_height)), target_height


def fill_color(preprocessing: Preprocessing, channels: int) -> tuple[int, ...]:
    """The bytes around a padded image: the mean of each channel."""
    mean = preprocessing.mean if len(preprocessing.mean) == channels else preprocessing.mean[:1] * channels
    return tuple(round(MAX_BYTE * value) for value in mean)


def _stretch(image: Image.Image, target: WidthHeight, preprocessing: Preprocessing) -> Image.Image:
    return image.resize(target, RESAMPLING[preprocessing.interpolation])


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """One value of data.fit. Both functions get a (width, height) as the target.

    scaled_size: of the whole image, as it is scaled. apply: fits the image.
    """

    scaled_size: Callable[[WidthHeight, WidthHeight, Preprocessing], WidthHeight]
    apply: Callable[[Image.Image, WidthHeight, Preprocessing], Image.Image]


FITS: Final[Mapping[FitName, Fit]] = {
    "crop": Fit(scaled_size=_covering_size, apply=_center_crop_and_resize),
    "pad": Fit(scaled_size=_inner_size, apply=_resize_and_pad),
    "stretch": Fit(scaled_size=lambda image, target, preprocessing: target, apply=_stretch),
}


NUM_CHECKED_IMAGES: Final = 8  # evenly spread over the data set
MAX_16_BIT_VALUE: Final = 0xFFFF
MAX_BLACK_VALUE: Final = 0xFF  # up to this value the upper 8 bits are 0
MAX_12_BIT_VALUE: Final = 0xFFF  # of cameras and scanners: the upper 8 bits hold 16 of 256 gray levels


def highest_values(paths: Sequence[str] | Sequence[Path]) -> list[int | None]:
    """The highest value of some of these images; None for one of 8 bits. Broken images are skipped."""
    values = []
    for index in np.unique(np.linspace(0, len(paths) - 1, NUM_CHECKED_IMAGES).astype(int)) if len(paths) else ():
        with suppress(*DECODE_ERRORS), open_image(Path(paths[int(index)])) as image:
            values.append(highest_value(image))
    return values


def highest_value(image: Image.Image) -> int | None:
    """The highest value of an image of 16 bits, or of 32 that are read as 16; None for any other image."""
    if image.mode == "F" or not is_high_bit_depth(image):
        return None
    value = int(np.asarray(image).max())
    return value if 0 <= value <= MAX_16_BIT_VALUE else None


def bit_depth_warnings(values: Iterable[int | None], name: str) -> tuple[str, ...]:
    """At most one warning for a data set whose sampled images have these highest values.

    The set is refused only if all sampled images would be black: a single dark image is no reason, and None (8 bits)
    says nothing.

    Raises:
        Failure: DATA if all of them would be black.
    """
    sampled = list(values)
    if sampled and all(value is not None and 0 < value <= MAX_BLACK_VALUE for value in sampled):
        raise Failure(
            f"{name} holds images of 16 bits that would all be read as black",
            found=_describe_values([value for value in sampled if value is not None]),
            expected=f"values up to {MAX_16_BIT_VALUE:,}, of which the upper 8 bits are read",
            fix="save them again with 8 bits",
            code=ExitCode.DATA,
        )
    return tuple(f"{name}: {warning}" for warning in gray_level_warnings(sampled))


def gray_level_warnings(values: Iterable[int | None]) -> tuple[str, ...]:
    """At most one warning, even if all images would be black."""
    deep = [value for value in values if value is not None]
    top = max(deep, default=0)
    if not 0 < top <= MAX_12_BIT_VALUE:
        return ()
    levels = (top >> 8) + 1
    left = f"{levels} gray levels are left" if levels > 1 else "nothing but black is left"
    factor = MAX_16_BIT_VALUE // top
    fix = f"multiply them by {factor} and save them again" if levels > 1 else "save them again with 8 bits"
    return (f"{_describe_values(deep)}: of 16 bits the upper 8 are read, {left}. fix: {fix}",)


def _describe_values(values: Sequence[int]) -> str:
    images = f"{len(values)} images of 16 bits" if len(values) > 1 else "1 image of 16 bits"
    return f"{images} looked at, no value above {max(values):,} of {MAX_16_BIT_VALUE:,}"
