"""`Preprocessing` says how a decoded image becomes a model's input in evaluation: crop, scaling and normalization."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """The evaluation transform that weights were trained for. Published weights come with a record of it.

    mean, std: per channel, of pixels scaled to 0..1; one number holds for all channels. crop_ratio: the side of the
    central crop / the shorter side of the image, as timm's crop_pct; 1.0: the largest central square.
    """

    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.25,)
    crop_ratio: float = 1.0
    interpolation: Interpolation = "bilinear"


# (byte - 127.5) / 63.75: about -2..2 for any data, so that no statistics have to be computed or stored.
DEFAULT_PREPROCESSING: Final = Preprocessing()
