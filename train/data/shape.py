"""Holds the shape of one sample: its channels, and its size in pixels and frames."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

COLOR_CHANNELS = {"rgb": 3, "gray": 1}  # of data.color
ImageSize = int | Sequence[int]  # in pixels: the side of a square, or (height, width)


def height_and_width(size: ImageSize) -> tuple[int, int]:
    """Both sides of data.image_size."""
    return (size, size) if isinstance(size, int) else (size[0], size[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """size is (height, width) for images, (frames, height, width) for clips; all at least 1."""

    channels: int
    size: tuple[int, ...]

    def __str__(self) -> str:
        return f"{' x '.join(map(str, self.size))} x {self.channels}"

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape of one sample as it is read: (*size, channels)."""
        return (*self.size, self.channels)

    @property
    def input(self) -> tuple[int, ...]:
        """The shape of one sample as the model gets it: (channels, *size)."""
        return (self.channels, *self.size)
