"""Decodes an image file, and scales a box that is cut out of it: what random_resized_crop does to whole images.

JPEGs of colours are decoded by simplejpeg, which gives Pillow's pixels in less time. Unless data.decode is exact, torch
scales the box, in less than half of Pillow's time; some of its values differ by 1 of 255.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
from PIL import Image
from torch.nn.functional import interpolate

from train.data import decode
from train.data.preprocessing import DEFAULT_PREPROCESSING, Preprocessing
from train.data.shape import ImageSize, height_and_width

MAX_KEPT_BYTES: Final = 32 * 2**20  # for the pixels of a photo of 11 megapixels
RgbPixels = npt.NDArray[np.uint8]  # [height, width, 3]
# (height, width) of an upright image -> top, left, height and width of the box to cut out.
ChooseBox = Callable[[int, int], tuple[int, int, int, int]]


def decode_crop(
    path: decode.ImageFile,
    size: ImageSize,
    sample: int,
    choose_box: ChooseBox,
    preprocessing: Preprocessing = DEFAULT_PREPROCESSING,
    *,
    channels: int = 3,
) -> npt.NDArray[np.uint8]:
    """Decode a whole image, and scale the box that `choose_box` cuts out of it to uint8 [height, width, channels].

    Raises:
        Failure: as `decode.decode_image`.
    """
    try:
        file = decode.read_image(path)
        with decode.open_image(file) as image:
            if preprocessing.decode == "fast" and image.format == "JPEG":
                reduced = _crop_reduced(image, size, choose_box, preprocessing, channels)
                if reduced is not None:
                    return decode.as_pixels(reduced, channels)
            if channels == 3 and (pixels := _decode_plain_jpeg(file, image)) is not None:
                return _scale_box(pixels, size, choose_box, preprocessing)
            return crop_image(
                decode.to_8_bits(image, channels, preprocessing), size, choose_box, preprocessing, channels
            )
    except decode.DECODE_ERRORS as error:
        raise decode.unreadable_image_failure(path, sample, error) from error


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
    scaled = box.resize(height_and_width(size)[::-1], decode.RESAMPLING[preprocessing.interpolation])
    return decode.as_pixels(scaled, channels)


def _decode_plain_jpeg(file: decode.ImageBytes, image: Image.Image) -> RgbPixels | None:
    """uint8 [height, width, 3], until the next call; None if Pillow has to decode it, or to say why it cannot."""
    if (image.format, image.mode) != ("JPEG", "RGB") or decode.exif_transpose(image) is not None:
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
        return np.asarray(Image.fromarray(box).resize(target[::-1], decode.RESAMPLING[preprocessing.interpolation]))
    images = torch.from_numpy(np.ascontiguousarray(box))[None].permute(0, 3, 1, 2)  # channels last, as the result then
    scaled = interpolate(images, target, mode=preprocessing.interpolation, antialias=True)
    return scaled[0].permute(1, 2, 0).numpy()


def _crop_reduced(
    image: Image.Image, size: ImageSize, choose_box: ChooseBox, preprocessing: Preprocessing, channels: int
) -> Image.Image | None:
    """The box of a JPEG that is decoded at the least size at which the box need not be enlarged; None at full size."""
    is_turned = decode.exif_transpose(image) in decode.QUARTER_TURNS
    width, height = image.size[::-1] if is_turned else image.size
    top, left, box_height, box_width = choose_box(height, width)
    target_height, target_width = height_and_width(size)
    least = -(-width * target_width // box_width), -(-height * target_height // box_height)
    image.draft("RGB", least[::-1] if is_turned else least)
    if (image.size[::-1] if is_turned else image.size) == (width, height):
        return None
    upright = decode.to_8_bits(image, channels, preprocessing)
    across, down = upright.width / width, upright.height / height
    box = (left * across, top * down, (left + box_width) * across, (top + box_height) * down)
    return upright.resize((target_width, target_height), decode.RESAMPLING[preprocessing.interpolation], box=box)
