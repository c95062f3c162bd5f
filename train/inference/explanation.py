"""Finds where in an image a network sees the evidence for what it predicts, and draws a heat map over the image.

Grad-CAM of R. R. Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization",
ICCV 2017: the last feature map, weighted by the mean gradient of each channel.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn
from torch.nn.functional import interpolate

from entrypoint import ExitCode, Failure, list_some
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
            found=list_some(names, describe=files.one_line),
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


BATCH_SIZE: Final = 16  # images whose gradients are in memory together


@dataclass(slots=True)
class FeatureMap:
    """The last output of a module that lies on the image.

    output: [n, channels, rows, columns], or with the channels last. tokens: whether tokens [n, tokens, channels] come
    after it, as in a transformer: attention mixes them, so that they lie on the image no more.
    """

    output: Tensor
    channels_last: bool
    tokens: bool = False

    def channels_first(self, values: Tensor) -> Tensor:
        """The map, or its gradient, as [n, channels, rows, columns]."""
        return values.movedim(-1, 1) if self.channels_last else values


@contextmanager
def recorded_feature_map(network: nn.Module, images: Tensor) -> Iterator[list[FeatureMap]]:
    """Inside, a forward pass of these images leaves the network's last feature map in the list, if it has one.

    A module's hook runs after those of the modules inside it, so that the last one is the outermost.
    """
    recorded: list[FeatureMap] = []

    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        if not isinstance(output, Tensor) or len(output) != len(images):
            return
        if (channels_last := _channels_last(output, _size_of(images))) is not None:
            recorded[:] = [FeatureMap(output, channels_last)]
        elif recorded and output.ndim == 3 and output.shape[1] > 1:
            recorded[0].tokens = True

    handles = [module.register_forward_hook(hook) for module in network.modules()]
    try:
        yield recorded
    finally:
        for handle in handles:
            handle.remove()


def _channels_last(output: Tensor, size: tuple[int, int]) -> bool | None:
    """Whether a map that lies on images of `size` has its channels last; None for another output."""
    if output.ndim != 4:
        return None
    if output.shape[2] * output.shape[3] > 1 and _lies_on((output.shape[2], output.shape[3]), size):
        return False
    grid = (output.shape[1], output.shape[2])
    return True if min(grid) > 1 and _lies_on(grid, size) else None  # [n, channels, 1, 1] is pooled


def _lies_on(grid: tuple[int, int], size: tuple[int, int]) -> bool:
    """Whether one stride leads from the image to rows and columns, each rounded up or down."""
    if any(cells > pixels for cells, pixels in zip(grid, size, strict=True)):
        return False
    least = max(pixels / (cells + 1) for cells, pixels in zip(grid, size, strict=True))
    most = min(pixels / max(cells - 1, 0.5) for cells, pixels in zip(grid, size, strict=True))
    return least <= most


def refuse_network_without_map(network: nn.Module, example: Tensor, option: str) -> None:
    """Refuse a network whose last feature map does not lie on the image. example: a batch of its input.

    Raises:
        Failure: USAGE, with the name of the network's class.
    """
    with torch.no_grad(), recorded_feature_map(network, example) as recorded:
        network(example)
    if recorded and not recorded[0].tokens:
        return
    name = type(network).__name__
    reason = f"{name} mixes its patches by attention, or flattens them, after its last feature map"
    raise Failure(
        f"{option} needs a convolutional network",
        found=reason if recorded else f"{name} has no output of the form [images, channels, rows, columns]",
        expected="a last feature map that lies on the image (ResNet, ConvNeXt, EfficientNet, Swin, small_cnn, ...)",
        fix=f"leave {option} out; or train a convolutional network",
        code=ExitCode.USAGE,
    )


def compute_heat_maps(network: nn.Module, images: Tensor, outputs: Sequence[int] | None = None) -> Tensor:
    """The evidence for one output of each image, float32 [n, height, width] on the CPU, from 0 to 1.

    All 0: nothing in the image speaks for the output. images: normalized [n, channels, height, width]. outputs: the
    index of each image's output; None: its highest one.
    """
    columns = None if outputs is None else torch.tensor(outputs, device=images.device)
    batches = [slice(start, start + BATCH_SIZE) for start in range(0, len(images), BATCH_SIZE)]
    maps = [_heat_maps_of_batch(network, images[at], None if columns is None else columns[at]) for at in batches]
    return torch.cat([torch.empty((0, *_size_of(images))), *maps])


def _heat_maps_of_batch(network: nn.Module, images: Tensor, columns: Tensor | None) -> Tensor:
    with torch.enable_grad(), recorded_feature_map(network, images) as recorded:
        # A gradient is wanted also where all weights are frozen.
        outputs = network(images.detach().requires_grad_()).float()
        chosen = outputs.amax(dim=1) if columns is None else outputs.gather(1, columns[:, None])
        feature_map = recorded[0]
        (gradient,) = torch.autograd.grad(chosen.sum(), feature_map.output)
    values = feature_map.channels_first(feature_map.output).detach().float()
    weights = feature_map.channels_first(gradient).float().mean(dim=(2, 3), keepdim=True)
    heat = (weights * values).sum(dim=1, keepdim=True).relu()
    heat = interpolate(heat, size=_size_of(images), mode="bilinear", align_corners=False)[:, 0]
    highest = heat.amax(dim=(1, 2), keepdim=True)
    return torch.where(highest > 0, heat / highest, torch.zeros_like(heat)).cpu()


def _size_of(images: Tensor) -> tuple[int, int]:
    return images.shape[-2], images.shape[-1]
