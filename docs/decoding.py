"""Measures on JPEG files how data.decode: fast differs from exact, in pixels and in time.

python docs/decoding.py FILE.jpg ...
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parents[1]))

from train.config import augmentations
from train.data import boxes, decode, operations
from train.data.preprocessing import DecodeName, Preprocessing

SIZES: Final = (64, 128, 224)
REPEATS: Final = 10
Decode = Callable[[DecodeName], npt.NDArray[np.uint8]]


def whole(path: Path, size: int, name: DecodeName) -> npt.NDArray[np.uint8]:
    """The central square."""
    return decode.decode_image(path, size, 0, Preprocessing(decode=name))


def crop(path: Path, size: int, draws: boxes.CropDraws, name: DecodeName) -> npt.NDArray[np.uint8]:
    """A box of random_resized_crop."""
    return decode.decode_crop(path, size, 0, partial(draws.box, 0), Preprocessing(decode=name))


def seconds(call: Decode, name: DecodeName) -> float:
    """The least processor time of one call, which other processes of the machine change little."""
    times = []
    for _ in range(REPEATS):
        start = time.thread_time()
        call(name)
        times.append(time.thread_time() - start)
    return min(times)


def measure(what: str, size: int, calls: list[Decode]) -> str:
    """One row of the table. calls: decode one image each."""
    differences = [np.abs(call("fast").astype(int) - call("exact").astype(int)) for call in calls]
    fast, exact = (sum(seconds(call, name) for call in calls) / len(calls) for name in ("fast", "exact"))
    mean, most = np.mean([each.mean() for each in differences]), max(each.max() for each in differences)
    cells = [
        what,
        str(size),
        f"{mean:.2f}",
        str(most),
        f"{1e3 * exact:.2f}",
        f"{1e3 * fast:.2f}",
        f"{exact / fast:.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def main(paths: list[Path]) -> None:
    """Print the table."""
    (step,) = augmentations.expand(["random_resized_crop"])
    head = ["image", "image_size", "mean difference", "largest", "exact, ms", "fast, ms", "times faster"]
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for size in SIZES:
        print(measure("whole", size, [partial(whole, path, size) for path in paths]), flush=True)
        draws = [
            boxes.CropDraws(operations.draw_numbers(step, np.array([sample]), seed=0, epoch=0), step.arguments)
            for sample in range(4)
        ]
        print(
            measure("random crop", size, [partial(crop, path, size, each) for path in paths for each in draws]),
            flush=True,
        )


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
