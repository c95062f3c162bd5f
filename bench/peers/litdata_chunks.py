"""Writes the JPEG files of a folder of each class's images into chunks of LitData, byte by byte.

python bench/peers/litdata_chunks.py --root FOLDER --output CHUNKS
"""

from __future__ import annotations

import argparse
import random

from litdata import optimize
from PIL import Image
from torchvision.datasets import ImageFolder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--chunk-bytes", default="64MB", help="of a chunk")
    wanted = parser.parse_args()
    samples = ImageFolder(wanted.root).samples
    random.Random(0).shuffle(samples)  # LitData's documentation asks for it: it mixes within a chunk
    optimize(read, samples, wanted.output, chunk_bytes=wanted.chunk_bytes, num_workers=1)


def read(sample: tuple[str, int]) -> tuple[Image.Image, int]:
    """LitData copies the bytes of an opened JPEG."""
    path, label = sample
    return Image.open(path), label


if __name__ == "__main__":
    main()
