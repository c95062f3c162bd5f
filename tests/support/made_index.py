"""Make tar shards of one small image, again and again, and their index: `python made_index.py FOLDER IMAGES`.

An index of many millions of images, with shards that take no disk: each is a hard link of one sparse file of 10,000
images, as far from each other as photos are. Used to measure starts and memory: making real ones takes hours.
"""

from __future__ import annotations

import io
import os
import sys
import tarfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from train.data.shard_labels import LabelKind
from train.data.shards import index as shard_index
from train.data.shards.index import ENTRY, Shard, ShardIndex
from train.data.shards.members import BLOCK
from train.data.shards.order import cut_into_runs
from train.tasks import CLASSIFICATION

IMAGES_PER_SHARD = 10_000
IMAGE_BYTES = 95_000  # a small JPEG and zeros, which end it
SPACING = 96_256  # a header of 512 bytes, the image, and zeros up to the next block
CLASSES = 1000


def write_index(folder: Path, images: int) -> None:
    """A multiple of IMAGES_PER_SHARD images, all to train on."""
    folder.mkdir(parents=True)
    written = io.BytesIO()
    Image.fromarray(np.full((32, 32, 3), 128, np.uint8)).save(written, "JPEG")
    content = written.getvalue().ljust(IMAGE_BYTES, bytes(1))
    first = folder / "train-00000.tar"
    with open(first, "wb") as file:
        for number in range(IMAGES_PER_SHARD):
            header = tarfile.TarInfo(f"{number:08d}.jpg")
            header.size = IMAGE_BYTES
            file.seek(number * SPACING)
            file.write(header.tobuf() + written.getvalue())
        file.truncate(IMAGES_PER_SHARD * SPACING + 2 * BLOCK)
    shards = images // IMAGES_PER_SHARD
    names = [first.name, *(f"train-{number:05d}.tar" for number in range(1, shards))]
    for name in names[1:]:
        os.link(first, folder / name)
    part = np.zeros(IMAGES_PER_SHARD, ENTRY)
    part["offset"] = np.arange(IMAGES_PER_SHARD) * SPACING + BLOCK
    part["length"], part["crc32"] = IMAGE_BYTES, zlib.crc32(content)
    entries = np.tile(part, shards)
    entries["label"] = np.arange(len(entries)) * 7919 % CLASSES
    runs = cut_into_runs(part["offset"])
    starts = (np.arange(shards)[:, None] * IMAGES_PER_SHARD + runs).ravel()
    status = first.stat()
    each = [
        Shard(name=name, split="training", size=status.st_size, modified_ns=status.st_mtime_ns, images=IMAGES_PER_SHARD)
        for name in names
    ]
    labels = LabelKind(task=CLASSIFICATION, classes=tuple(map(str, range(CLASSES))))
    shard_index.write_files(
        ShardIndex(
            folder=folder,
            shards=tuple(each),
            labels=labels,
            entries=entries,
            run_starts=np.append(starts, len(entries)),
            order=shard_index.order_training_images(each, entries, labels),
        )
    )


if __name__ == "__main__":
    write_index(Path(sys.argv[1]), int(sys.argv[2]))
