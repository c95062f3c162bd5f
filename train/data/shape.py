"""Holds the shape of one sample: its channels, and its size in pixels and frames."""

from __future__ import annotations

from dataclasses import dataclass


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
