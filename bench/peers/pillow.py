"""The usual input pipeline: PIL images, cropped, mirrored and normalized one by one by torchvision, in workers; timed
without training.

python bench/peers/pillow.py --batch 256 --workers 4
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # the image's Python does not look there by itself

import torch
import workload
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

MEAN, DEVIATION = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


class Pictures(Dataset):
    """As torchvision's CIFAR100 keeps them: an array, of which each item becomes a PIL image."""

    def __init__(self, pixels: Tensor, labels: Tensor) -> None:
        self.pixels, self.labels = pixels.numpy(), labels.tolist()
        size = self.pixels.shape[1]
        self.change = transforms.Compose(
            [
                transforms.RandomCrop(size, padding=size // 8),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(MEAN, DEVIATION),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        return self.change(Image.fromarray(self.pixels[number])), self.labels[number]


def main() -> None:
    parser = workload.arguments(__doc__.partition(":")[0])
    parser.add_argument("--workers", type=int, default=1, help="0: in the process that asks for the batches")
    parser.add_argument("--one-core", action="store_true", help="all of them on one core")
    wanted = parser.parse_args()
    if wanted.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    stream = batches(wanted)
    device = torch.device("cpu")
    workload.timed(lambda: next(stream), wanted, device, peer="pillow", workers=wanted.workers)


def batches(wanted: argparse.Namespace) -> Iterator[list[Tensor]]:
    """For ever; the workers stay."""
    loader = DataLoader(
        Pictures(*workload.images(wanted)),
        batch_size=wanted.batch,
        shuffle=True,
        drop_last=True,
        num_workers=wanted.workers,
        persistent_workers=wanted.workers > 0,
    )
    while True:
        yield from loader


if __name__ == "__main__":
    main()
