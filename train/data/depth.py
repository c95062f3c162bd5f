"""From a few images of more than 8 bits to whether they fill them: of 16 bits the upper 8 are read, and no others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
from PIL import Image

from entrypoint import ExitCode, Failure
from train.data import decode

LOOKED: Final = 8  # images, spread over all
WHITE: Final = 0xFFFF
BLACK: Final = 0xFF  # up to this nothing is left
FEW: Final = 0xFFF  # 12 bits, as cameras and scanners have them: 16 of 256 gray levels are left


def of_files(paths: Sequence[str] | Sequence[Path]) -> list[int | None]:
    """The highest value of some of these images; None for one of 8 bits. Of broken ones nothing is said here."""
    found = []
    for place in np.unique(np.linspace(0, len(paths) - 1, LOOKED).astype(int)) if len(paths) else ():
        with suppress(*decode.BROKEN), decode.opened(Path(paths[int(place)])) as image:
            found.append(highest(image))
    return found


def highest(image: Image.Image) -> int | None:
    """The highest value of an image of 16 bits, or of 32 that are read as 16; None for any other image."""
    if image.mode == "F" or not decode.is_deep(image):
        return None
    value = int(np.asarray(image).max())
    return value if 0 <= value <= WHITE else None


def warnings(values: Iterable[int | None], name: str) -> tuple[str, ...]:
    """What to say of a set, of which some images have these highest values: nothing, or one warning.

    One dark image is no matter, and of those of 8 bits nothing is known: only where all are alike the set is refused.

    Raises:
        Failure: DATA, where all of them would be black.
    """
    looked = list(values)
    if looked and all(value is not None and 0 < value <= BLACK for value in looked):
        raise Failure(
            f"{name} holds images of 16 bits that would all be read as black",
            found=_seen([value for value in looked if value is not None]),
            expected=f"values up to {WHITE:,}, of which the upper 8 bits are read",
            fix="save them anew with 8 bits",
            code=ExitCode.DATA,
        )
    return tuple(f"{name}: {warning}" for warning in told(looked))


def told(values: Iterable[int | None]) -> tuple[str, ...]:
    """The same as a warning, whatever the values."""
    deep = [value for value in values if value is not None]
    top = max(deep, default=0)
    if not 0 < top <= FEW:
        return ()
    levels = (top >> 8) + 1
    left = f"{levels} gray levels are left" if levels > 1 else "nothing but black is left"
    fix = f"multiply them by {WHITE // top} and save them anew" if levels > 1 else "save them anew with 8 bits"
    return (f"{_seen(deep)}: of 16 bits the upper 8 are read, {left}. fix: {fix}",)


def _seen(values: Sequence[int]) -> str:
    images = f"{len(values)} images of 16 bits" if len(values) > 1 else "1 image of 16 bits"
    return f"{images} looked at, no value above {max(values):,} of {WHITE:,}"
