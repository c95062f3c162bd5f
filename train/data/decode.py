"""Decodes an image file to RGB or gray pixels of one size: all of it, or a box that is cut out of it.

Of 16-bit images only the upper 8 bits are kept, so images that do not use them are reported. Transparent pixels show
the colour of the border of data.fit: pad. For random_resized_crop, JPEGs of colours are decoded by simplejpeg, which
gives Pillow's pixels in less time; and torch scales the box, unless data.decode is exact, in less than half of Pillow's
time: some of its values differ by 1 of 255.
"""

from __future__ import annotations

import errno
import io
import math
import os
import re
import stat
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
from PIL import ExifTags, Image, TiffImagePlugin, UnidentifiedImageError
from torch.nn.functional import interpolate

from entrypoint import ExitCode, Failure, shell_command
from train.data.class_folders import CONVERT_FIX, UNSUPPORTED_IMAGE_SUFFIXES
from train.data.preprocessing import DEFAULT_PREPROCESSING, FitName, Preprocessing
from train.data.shape import ImageSize, height_and_width

# All that Pillow raised for 70,000 damaged files of its main formats.
DECODE_ERRORS: Final = (OSError, UnidentifiedImageError, ValueError, SyntaxError, Image.DecompressionBombError)
HIGH_BIT_DEPTH_MODES: Final = ("I", "F")  # Pillow opens 16-bit PGM files as I, too
GRAY_MODES: Final = ("1", "L")  # of 8 bits or less
MAX_BYTE: Final = 255
PIXELS_PER_MEGAPIXEL: Final = 10**6
# Keys of Image.info for the EXIF block and for XMP, whose orientation Pillow takes where EXIF has none. Pillow turns a
# TIFF when it loads it, by the same two.
ORIENTATION_KEYS: Final = frozenset({"exif", "Raw profile type exif", "xmp", "XML:com.adobe.xmp"})
# How a tile of colours of 16 bits is unpacked: big-endian, little-endian or in this machine's order. BGR;16 has 16 bits
# for all three colours.
DEEP_COLORS: Final = re.compile(r"'(?:LA|R|RGB[AaX]?|CMYK);16[BLN]'")
# The transposition that makes an image upright, by its orientation in EXIF.
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
OS_ERRORS: Final[Mapping[int | None, tuple[ExitCode, str]]] = {
    errno.ENOENT: (ExitCode.NO_INPUT, "put the file back; while a run lasts, its files must stay"),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM),
        (ExitCode.NO_INPUT, "let this user read the file, or delete it"),
    ),
    **dict.fromkeys(
        (errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EREMOTEIO),
        (ExitCode.IO, "start again when the file system answers"),
    ),
    **dict.fromkeys(
        (errno.EMFILE, errno.ENFILE, errno.ENOMEM),
        (ExitCode.RESOURCE, "set data.workers lower, or raise the limit of open files (ulimit -n)"),
    ),
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
                height, width = height_and_width(size)
                if width != height and exif_transpose(image) in QUARTER_TURNS:  # it is turned upright later
                    height, width = width, height
                image.draft("RGB", scaled_size(image.size, (height, width), preprocessing))
            return as_pixels(fit_image(to_8_bits(image, channels, preprocessing), size, preprocessing), channels)
    except DECODE_ERRORS as error:
        raise unreadable_image_failure(path, sample, error) from error


def open_image(path: ImageFile | BinaryIO) -> Image.Image:
    """Open an image without decoding it. Raises one of DECODE_ERRORS; also for a pipe, where reading would block."""
    if isinstance(path, Path) and not stat.S_ISREG(os.stat(path).st_mode):
        raise ValueError("no regular file")
    image: Any = Image.open(io.BytesIO(path.data) if isinstance(path, ImageBytes) else path)
    if image.format == "TIFF" and _is_planar(image) and "codec_name='raw'" in str(image.tile[:1]):
        # Pillow forgets the depth of such colours, and reads numbers of 16 bits as bytes.
        deep = ";16" + ("B" if image.tag_v2.prefix == TiffImagePlugin.MM else "L")
        suffix = deep if 16 in image.tag_v2.get(TiffImagePlugin.BITSPERSAMPLE, ()) else ""
        image.tile = [tile._replace(args=(tile.args[0] + suffix, *tile.args[1:])) for tile in image.tile]
    return image  # type: ignore[no-any-return]


def to_8_bits(image: Image.Image, channels: int, preprocessing: Preprocessing = DEFAULT_PREPROCESSING) -> Image.Image:
    """Convert to 8 bits and three channels, and turn it upright by its orientation in EXIF, or else in XMP.

    A gray image stays gray if it gets one channel; `as_pixels` mixes colours, after they are scaled. Of 16 bits the
    upper 8 are taken: Pillow itself would clip nearly all pixels to white. Pixels that are transparent show
    `fill_color`, as far as they are: what they hide is seen nowhere else, and need not mean anything.

    Raises:
        ValueError: for 32 bits, whose range of values is unknown.
    """
    if has_transparency(image):
        rgba = to_rgba(image)
        flat = Image.new("RGB", rgba.size, fill_color(preprocessing, len("RGB")))
        flat.paste(rgba, mask=rgba)
        return flat
    reduced = _with_8_bits(image)
    converted = reduced.convert("L" if channels == 1 and reduced.mode in GRAY_MODES else "RGB")
    return _turn_upright(converted, image)


def has_transparency(image: Image.Image) -> bool:
    """Whether pixels may be transparent. What a user's code made RGB or gray has none, whatever its `info` keeps."""
    return image.has_transparency_data and (image.format is not None or image.mode not in ("RGB", *GRAY_MODES))


def to_rgba(image: Image.Image) -> Image.Image:
    """Convert an image with transparency to RGBA of 8 bits, upright. Raises as `to_8_bits`."""
    reduced = _with_8_bits(image)
    return _turn_upright((reduced.convert("LA") if reduced.mode == "La" else reduced).convert("RGBA"), image)


def _turn_upright(converted: Image.Image, original: Image.Image) -> Image.Image:
    """Turn what was made of `original`, which is loaded: before that a TIFF is not turned, and a PNG lacks tags."""
    transpose = exif_transpose(original)
    return converted if transpose is None else converted.transpose(transpose)


def as_pixels(image: Image.Image, channels: int) -> npt.NDArray[np.uint8]:
    """The pixels of an RGB or gray image, uint8 [height, width, channels]. Gray is the luma of ITU-R 601-2."""
    return np.asarray(image.convert("L"))[..., None] if channels == 1 else np.asarray(image)


def exif_transpose(image: Image.Image) -> Image.Transpose | None:
    """The transposition of its orientation in EXIF, or else in XMP; None for damaged tags: the pixels may be intact."""
    if ORIENTATION_KEYS.isdisjoint(image.info):
        return None
    try:
        return EXIF_TRANSPOSES.get(image.getexif().get(ExifTags.Base.Orientation))
    except Exception:  # Pillow does not document what it raises here
        return None


def is_high_bit_depth(image: Image.Image) -> bool:
    """Whether it is gray, and its pixels have more than 8 bits."""
    return image.mode in HIGH_BIT_DEPTH_MODES or image.mode.startswith("I;16")


def _with_8_bits(image: Image.Image) -> Image.Image:
    transparent, is_gray = image.info.get("transparency"), is_high_bit_depth(image)
    if transparent is None and not is_gray:
        return image
    # Pillow scales the pixels of 2 and 4 bits, and not this gray level.
    if transparent and (bits := re.search("'L;([24])'", str(getattr(image, "tile", "")))):
        image.info["transparency"] = transparent * MAX_BYTE // (2 ** int(bits[1]) - 1)
    values = np.asarray(image) if is_gray else _read_deep_colors(image)
    if values is None:
        return image
    if image.mode == "F" or values.max() > MAX_16_BIT_VALUE or values.min() < 0:
        raise ValueError(f"pixels of 32 bits (mode {image.mode}): save it with 8 or 16 bits")
    reduced = Image.fromarray((values >> 8).astype(np.uint8))
    if transparent is not None:
        is_visible = (values.reshape(*values.shape[:2], -1) != transparent).any(axis=2)
        reduced.putalpha(Image.fromarray(is_visible.astype(np.uint8) * MAX_BYTE))
    return reduced


def _read_deep_colors(image: Any) -> npt.NDArray[np.uint16] | None:
    """All 16 bits of an image's colours, [height, width, 3 or 1]; None for an image of 8 bits, or one that is loaded.

    Pillow keeps the upper 8, so the image is decoded again, with the bytes of each number exchanged.
    """
    tiles: Any = getattr(image, "tile", ())
    if tiles and tiles[0].codec_name.startswith("ppm") and tiles[0].args[-1] > MAX_BYTE:  # it rounds to 8 bits
        return np.maximum(np.asarray(image), 1) * np.uint16(MAX_BYTE + 1) - np.uint16(1)  # type: ignore[no-any-return]
    match = DEEP_COLORS.search(str(tiles))
    if match is None:
        return None
    bands = slice(1, 2) if "LA" in match[0] else slice(3)  # of gray and alpha the four bytes are read
    lower: Any = np.uint16(MAX_BYTE)
    if tiles[0].codec_name != "libtiff" or not _is_planar(image):  # of which Pillow tells the upper ones alone
        image.fp.seek(0)
        exchanged: Any = open_image(image.fp)
        exchanged.tile = [tile._replace(args=_exchange_bytes(tile.args)) for tile in exchanged.tile]
        lower = np.asarray(exchanged)[..., bands]
    return np.asarray(image)[..., bands] * np.uint16(MAX_BYTE + 1) + lower  # type: ignore[no-any-return]


def _is_planar(image: Image.Image) -> bool:
    """Whether it is a TIFF that stores its colours one behind the other."""
    return getattr(image, "tag_v2", {}).get(TiffImagePlugin.PLANAR_CONFIGURATION) == 2


def _exchange_bytes(args: Any) -> Any:
    """The arguments of a tile whose numbers are unpacked from their lower bytes, on a little-endian machine."""
    if isinstance(args, tuple):
        return (_exchange_bytes(args[0]), *args[1:])
    return "RGBA" if args == "LA;16B" else args[:-1] + ("L" if args.endswith("B") else "B")


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
    if isinstance(error, Image.DecompressionBombError):  # Pillow calls it an attack: it may be a satellite scene
        pixels, most = (int(count) / PIXELS_PER_MEGAPIXEL for count in re.findall(r"(\d+) pixels", reason))
        reason = f"{math.ceil(pixels)} megapixels, and at most {int(most)} are read"
        fix = "cut it into tiles, or scale it down; or skip it with data.max_bad_images=1"
    if isinstance(error, UnidentifiedImageError):  # whose text repeats the path
        reason = "an empty file" if _is_empty_file(path) else "no image that Pillow knows"
        fix = CONVERT_FIX if str(path).lower().endswith(UNSUPPORTED_IMAGE_SUFFIXES) else fix
    return Failure(f"image {sample} cannot be read", found=f"{path}: {reason}", fix=fix, code=code)


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
    "stretch": Fit(
        scaled_size=lambda image, target, preprocessing: target,
        apply=lambda image, target, preprocessing: image.resize(target, RESAMPLING[preprocessing.interpolation]),
    ),
}


MAX_KEPT_BYTES: Final = 32 * 2**20  # for the pixels of a photo of 11 megapixels
RgbPixels = npt.NDArray[np.uint8]  # [height, width, 3]
# (height, width) of an upright image -> top, left, height and width of the box to cut out.
ChooseBox = Callable[[int, int], tuple[int, int, int, int]]


def decode_crop(
    path: ImageFile,
    size: ImageSize,
    sample: int,
    choose_box: ChooseBox,
    preprocessing: Preprocessing = DEFAULT_PREPROCESSING,
    *,
    channels: int = 3,
) -> npt.NDArray[np.uint8]:
    """Decode a whole image, and scale the box that `choose_box` cuts out of it to uint8 [height, width, channels].

    Raises:
        Failure: as `decode_image`.
    """
    try:
        file = read_image(path)
        with open_image(file) as image:
            if preprocessing.decode == "fast" and image.format == "JPEG":
                reduced = _crop_reduced(image, size, choose_box, preprocessing, channels)
                if reduced is not None:
                    return as_pixels(reduced, channels)
            if channels == 3 and (pixels := _decode_plain_jpeg(file, image)) is not None:
                return _scale_box(pixels, size, choose_box, preprocessing)
            return crop_image(to_8_bits(image, channels, preprocessing), size, choose_box, preprocessing, channels)
    except DECODE_ERRORS as error:
        raise unreadable_image_failure(path, sample, error) from error


def crop_image(
    image: Image.Image,
    size: ImageSize,
    choose_box: ChooseBox,
    preprocessing: Preprocessing = DEFAULT_PREPROCESSING,
    channels: int = 3,
) -> npt.NDArray[np.uint8]:
    """Cut the box out of an upright image of 8 bits and scale it to uint8 [height, width, channels].

    As torchvision does it: no pixel outside of the box counts.
    """
    if channels == 3 and preprocessing.decode != "exact":
        return _scale_box(np.array(image), size, choose_box, preprocessing)
    top, left, height, width = choose_box(image.height, image.width)
    box = image.crop((left, top, left + width, top + height))
    scaled = box.resize(height_and_width(size)[::-1], RESAMPLING[preprocessing.interpolation])
    return as_pixels(scaled, channels)


def _decode_plain_jpeg(file: ImageBytes, image: Image.Image) -> RgbPixels | None:
    """uint8 [height, width, 3], until the next call; None if Pillow has to decode it, or to say why it cannot."""
    if (image.format, image.mode) != ("JPEG", "RGB") or exif_transpose(image) is not None:
        return None
    try:
        return simplejpeg.decode_jpeg(file.data, buffer=_pixel_memory(image))  # type: ignore[no-any-return]
    except ValueError:  # also for flaws that do not keep Pillow from reading it
        return None


_kept = threading.local()


def _pixel_memory(image: Image.Image) -> npt.NDArray[np.uint8]:
    """Bytes for the pixels of this image: those of the image before, since new memory takes a fifth of the decoding."""
    size = 3 * image.width * image.height
    if size > MAX_KEPT_BYTES:
        return np.empty(size, np.uint8)
    if not hasattr(_kept, "memory"):
        _kept.memory = np.empty(MAX_KEPT_BYTES, np.uint8)
    return _kept.memory[:size]  # type: ignore[no-any-return]


def _scale_box(pixels: RgbPixels, size: ImageSize, choose_box: ChooseBox, preprocessing: Preprocessing) -> RgbPixels:
    """The box that `choose_box` cuts out, in another size."""
    top, left, height, width = choose_box(*pixels.shape[:2])
    box, target = pixels[top : top + height, left : left + width], height_and_width(size)
    if preprocessing.decode == "exact":
        return np.asarray(Image.fromarray(box).resize(target[::-1], RESAMPLING[preprocessing.interpolation]))
    images = torch.from_numpy(np.ascontiguousarray(box))[None].permute(0, 3, 1, 2)  # channels last, as the result then
    scaled = interpolate(images, target, mode=preprocessing.interpolation, antialias=True)
    return scaled[0].permute(1, 2, 0).numpy()


def _crop_reduced(
    image: Image.Image, size: ImageSize, choose_box: ChooseBox, preprocessing: Preprocessing, channels: int
) -> Image.Image | None:
    """The box of a JPEG that is decoded at the least size at which the box need not be enlarged; None at full size."""
    is_turned = exif_transpose(image) in QUARTER_TURNS
    width, height = image.size[::-1] if is_turned else image.size
    top, left, box_height, box_width = choose_box(height, width)
    target_height, target_width = height_and_width(size)
    least = -(-width * target_width // box_width), -(-height * target_height // box_height)
    image.draft("RGB", least[::-1] if is_turned else least)
    if (image.size[::-1] if is_turned else image.size) == (width, height):
        return None
    upright = to_8_bits(image, channels, preprocessing)
    across, down = upright.width / width, upright.height / height
    box = (left * across, top * down, (left + box_width) * across, (top + box_height) * down)
    return upright.resize((target_width, target_height), RESAMPLING[preprocessing.interpolation], box=box)


NUM_CHECKED_IMAGES: Final = 8  # evenly spread over the data set
MAX_16_BIT_VALUE: Final = 0xFFFF
MAX_BLACK_VALUE: Final = 0xFF  # up to this value the upper 8 bits are 0
MAX_12_BIT_VALUE: Final = 0xFFF  # of cameras and scanners: the upper 8 bits hold 16 of 256 gray levels


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFacts:
    """What may be lost of an image when it is read.

    highest: the highest value of an image of 16 bits, or of 32 that are read as 16; None for any other image. format:
    of a file with further pages or frames, which are not read; None without them. is_hidden: all is transparent.
    """

    highest: int | None = None
    format: str | None = None
    is_hidden: bool = False


NO_FACTS: Final = ImageFacts()


def find_facts(image: Image.Image) -> ImageFacts:
    """The facts about an opened image, which this loads if they are not in its header. Raises one of DECODE_ERRORS."""
    has_pages = getattr(image, "is_animated", False) and image.format != "MPO"  # a photo with previews of it
    values = None if image.mode == "F" else np.asarray(image) if is_high_bit_depth(image) else _read_deep_colors(image)
    highest = -1 if values is None else int(values.max())
    return ImageFacts(
        highest=highest if 0 <= highest <= MAX_16_BIT_VALUE else None,
        format=image.format if has_pages else None,
        is_hidden=has_transparency(image) and to_rgba(image).getchannel("A").getextrema()[1] == 0,
    )


def sample_facts(image: Callable[[int], ImageFile], count: int) -> list[ImageFacts]:
    """The facts about some of so many images. image: where one is. Broken images are skipped."""
    facts = []
    for number in np.unique(np.linspace(0, count - 1, NUM_CHECKED_IMAGES).astype(int)) if count else ():
        with suppress(Failure, *DECODE_ERRORS), open_image(image(int(number))) as opened:
            facts.append(find_facts(opened))
    return facts


def describe_facts(facts: Iterable[ImageFacts]) -> tuple[str, ...]:
    """Warnings of what is lost of these images, even if all would be black; none if all of them is read."""
    facts, warnings = [*facts], list[str]()
    deep = [each.highest for each in facts if each.highest is not None]
    top = max(deep, default=0)
    if 0 < top <= MAX_12_BIT_VALUE:
        levels = (top >> 8) + 1
        left = f"{levels} gray levels are left" if levels > 1 else "nothing but black is left"
        factor = MAX_16_BIT_VALUE // top
        fix = f"multiply them by {factor} and save them again" if levels > 1 else "save them again with 8 bits"
        warnings.append(f"{_describe_values(deep)}: of 16 bits the upper 8 are read, {left}. fix: {fix}")
    if formats := sorted({each.format for each in facts if each.format}):
        count = sum(each.format is not None for each in facts)
        warnings.append(f"{count} of {len(facts)} images looked at {PAGES_TEXT} ({', '.join(formats)})")
    return tuple(warnings)


PAGES_TEXT: Final = "hold several pages or frames, of which the first is read"


def sample_warnings(facts: Sequence[ImageFacts], name: str) -> tuple[str, ...]:
    """The warnings of `describe_facts`, with the name of the data set.

    A single dark image is no reason to refuse it, and one of 8 bits says nothing.

    Raises:
        Failure: DATA if all sampled images would be black, or are transparent everywhere.
    """
    values = [each.highest for each in facts]
    dark = [value for value in values if value is not None and value <= MAX_BLACK_VALUE]
    if dark and len(dark) == len(values) < 2 * sum(map(bool, dark)):  # most are not black in the file
        raise Failure(
            f"{name} holds images of 16 bits that would all be read as black",
            found=_describe_values(dark),
            expected=f"values up to {MAX_16_BIT_VALUE:,}, of which the upper 8 bits are read",
            fix="save them again with 8 bits",
            code=ExitCode.DATA,
        )
    if values and all(each.is_hidden for each in facts):
        raise Failure(
            f"{name} holds images that are transparent everywhere",
            found=f"{len(values)} images looked at, each would be one colour",
            fix="save them without an alpha channel, if the colours behind it are the images",
            code=ExitCode.DATA,
        )
    return tuple(f"{name}: {warning}" for warning in describe_facts(facts))


def _describe_values(values: Sequence[int]) -> str:
    images = f"{len(values)} images of 16 bits" if len(values) > 1 else "1 image of 16 bits"
    return f"{images} looked at, no value above {max(values):,} of {MAX_16_BIT_VALUE:,}"
