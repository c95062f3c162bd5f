"""Tables of labelled images, made for a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from images import write_image


def write_table(
    folder: Path, rows: Sequence[str], header: str = "path,label", name: str = "labels.csv", images: int | None = None
) -> Path:
    """The table, and `images` (default: one for each row) small images 000.png, 001.png, ... beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(len(rows) if images is None else images):
        write_image(folder / f"{number:03d}.png", 3 * number % 251)
    (folder / name).write_text("".join(f"{line}\n" for line in (header, *rows)))
    return folder / name


def rows(labels: Sequence[object], *others: Sequence[object]) -> list[str]:
    """One row for each label: 000.png,LABEL and a cell of each of the other columns."""
    columns = zip(labels, *others, strict=True)
    return [",".join([f"{number:03d}.png", *map(str, cells)]) for number, cells in enumerate(columns)]
