"""Folders of small images, made for a test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def write_image(path: Path, number: int = 0, size: tuple[int, int] = (8, 8)) -> Path:
    """One image whose pixels all hold `number`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size[1], size[0], 3), number, np.uint8)).save(path)
    return path


def write_classes(root: Path, **counts: int) -> Path:
    """A folder for each class with so many images."""
    for place, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            write_image(root / name / f"{number:03d}.png", 50 * place + number)
    return root
