"""Draws a heat map over each image, and writes the pictures of `train predict --explain` into a folder."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from entrypoint import ExitCode, Failure
from train import files
from train.data.augment import undo_normalization
from train.data.preprocessing import Preprocessing
from train.files import shorten_name

EXPLAIN_OPTION: Final = "--explain"
COLORS: Final = "inferno"  # from black over red to yellow: also for colour-blind people
MAX_OPACITY: Final = 0.65  # of the heat map where it is 1
MIN_SIDE: Final = 224  # pixels of the shorter side of an image in a picture
GAP, CAPTION_HEIGHT, FONT_SIZE = 8, 26, 15  # pixels
CAPTION_LETTERS: Final = 48
MAX_STEM_BYTES: Final = 240  # of 255, beside a number and the ending


def displayable(pixels: Tensor) -> npt.NDArray[np.uint8]:
    """uint8 [height, width] or [height, width, 3]: of a clip the middle frame, of many channels the first.

    Values that are no bytes are stretched from the sample's lowest to its highest one.
    """
    while pixels.ndim > 3:
        pixels = pixels[len(pixels) // 2]
    pixels = pixels if pixels.shape[-1] == 3 else pixels[..., 0]
    if pixels.dtype != torch.uint8:
        values = pixels.double().nan_to_num()
        low, high = values.min(), values.max()
        pixels = ((values - low) / (high - low).clamp_min(1e-12) * 255).round().to(torch.uint8)
    array: npt.NDArray[np.uint8] = pixels.contiguous().numpy()
    return array


def prepare_folder(folder: Path) -> None:
    """Make the folder, which may not hold files: a picture could replace one of the user's.

    Raises:
        Failure: OUTPUT, also as `files.prepare_folder`.
    """
    if folder.is_dir() and (names := sorted(os.listdir(folder))):
        raise Failure(
            f"{EXPLAIN_OPTION} writes into a new folder, and {folder} holds files",
            found=", ".join(map(files.one_line, names[:3])),
            fix=f"write {EXPLAIN_OPTION} DIR, a folder that does not exist yet or is empty",
            code=ExitCode.OUTPUT,
        )
    files.prepare_folder(folder)


def blend(image: npt.NDArray[np.uint8], heat: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Draw a heat map over an image, uint8 [height, width, 3]. The image is gray below it, so that all colour is heat.

    image: [height, width] or [height, width, 3]. heat: [height, width], from 0 to 1.
    """
    import matplotlib  # an evaluation without heat maps does not need it

    colors = matplotlib.colormaps[COLORS](heat)[..., :3] * 255
    opacity = MAX_OPACITY * heat[..., None]
    gray = np.asarray(Image.fromarray(image).convert("L"))[..., None]
    blended: npt.NDArray[np.uint8] = np.rint(gray * (1 - opacity) + colors * opacity).astype(np.uint8)
    return blended


def draw_explanation(image: npt.NDArray[np.uint8], heat: npt.NDArray[np.float32], caption: str) -> bytes:
    """A PNG: the image, and beside it the same under its heat map; the caption above. Small images are enlarged."""
    height, width = heat.shape
    scale = max(1, -(-MIN_SIDE // min(height, width)))
    large_heat = Image.fromarray(heat).resize((width * scale, height * scale), Image.Resampling.BILINEAR)
    large = np.repeat(np.repeat(image, scale, axis=0), scale, axis=1)
    panels = (Image.fromarray(large).convert("RGB"), Image.fromarray(blend(large, np.asarray(large_heat))))
    picture = Image.new("RGB", (2 * width * scale + GAP, height * scale + CAPTION_HEIGHT), "white")
    for number, panel in enumerate(panels):
        picture.paste(panel, (number * (width * scale + GAP), CAPTION_HEIGHT))
    text = shorten_name(caption, CAPTION_LETTERS)
    ImageDraw.Draw(picture).text((2, 3), text, fill="black", font=_caption_font())
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def _caption_font() -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which comes with matplotlib and has most alphabets."""
    import matplotlib

    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"), FONT_SIZE)


def _shorten_stem(stem: str) -> str:
    encoded = os.fsencode(stem)
    return stem if len(encoded) <= MAX_STEM_BYTES else encoded[:MAX_STEM_BYTES].decode(errors="ignore")


@dataclass(slots=True, kw_only=True)
class ExplanationWriter:
    """Writes a picture for each image into a folder, named as the image; the second `cat` becomes `cat-2`."""

    folder: Path
    preprocessing: Preprocessing
    bytes_: bool
    names: Counter[str] = field(default_factory=Counter)

    def write(self, images: Tensor, heat_maps: Tensor, paths: Sequence[Path], captions: Sequence[str]) -> None:
        """images: normalized, [n, channels, height, width] on the CPU. Raises Failure: as `files.write_atomic`."""
        pixels = undo_normalization(images, self.preprocessing) if self.bytes_ else images
        rows = zip(pixels.movedim(1, -1), heat_maps.numpy(), paths, captions, strict=True)
        for image, heat, path, caption in rows:
            files.write_atomic(self._file(path), draw_explanation(displayable(image), heat, caption))

    def _file(self, path: Path) -> Path:
        stem = _shorten_stem(path.stem)
        name = stem
        while name in self.names:
            self.names[stem] += 1
            name = f"{stem}-{self.names[stem]}"
        self.names[name] = 1
        return self.folder / f"{name}.png"
