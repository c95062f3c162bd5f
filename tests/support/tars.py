"""Tar shards of small images, made for a test."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from train.config.schema import DataConfig

SIDE = 8
Members = dict[str, bytes]


def png(value: int, side: int = SIDE) -> bytes:
    written = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), value, np.uint8)).save(written, "PNG")
    return written.getvalue()


def write_tar(path: Path, members: Members) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def numbered(first: int, count: int) -> Members:
    """Images of the values first, first + 1, ..., whose class is the value modulo 2."""
    members: Members = {}
    for value in range(first, first + count):
        members |= {f"{value:04d}.png": png(value), f"{value:04d}.cls": str(value % 2).encode()}
    return members


def data_of(folder: Path, **values: object) -> DataConfig:
    return replace(DataConfig(), name="shards", root=str(folder), image_size=SIDE, classes=10, **values)  # type: ignore[arg-type]
