"""Grad-CAM shows where in an image a convolutional network finds the evidence for what it predicts.

R. R. Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization", ICCV 2017:
the last feature map, weighted by the mean gradient of each channel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from entrypoint import ExitCode, Failure

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
