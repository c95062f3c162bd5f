"""The input pipelines of torchvision, timm and WebDataset for ImageNet: JPEG files or tar shards of them, cut at
random, scaled to 224 pixels, mirrored and normalized in workers; timed without training.

python bench/peers/photos.py --library torchvision --root FOLDER --workers 4
"""

from __future__ import annotations

import argparse
import glob
import itertools
import os
import sys
from collections.abc import Iterator

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # the image's Python does not look there by itself

import torch
import workload
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def main() -> None:
    parser = workload.arguments(__doc__.partition(":")[0])
    parser.add_argument("--library", choices=tuple(LOADERS), required=True)
    parser.add_argument("--root", required=True, help="a folder of each class's images; for webdataset of *.tar")
    parser.add_argument("--workers", type=int, default=1, help="0: in the process that asks for the batches")
    parser.add_argument("--one-core", action="store_true", help="all of them on one core")
    wanted = parser.parse_args()
    if wanted.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    stream = itertools.chain.from_iterable(itertools.repeat(LOADERS[wanted.library](wanted)))
    workload.timed(lambda: next(stream), wanted, torch.device("cpu"), peer=wanted.library, workers=wanted.workers)


def torchvision_loader(wanted: argparse.Namespace) -> DataLoader:
    """As torchvision's reference does it with v2 transforms and PIL images."""
    return DataLoader(
        ImageFolder(wanted.root, transform(wanted.size)),
        batch_size=wanted.batch,
        shuffle=True,
        drop_last=True,
        num_workers=wanted.workers,
        persistent_workers=wanted.workers > 0,
    )


def transform(size: int) -> v2.Compose:
    """Of PIL images."""
    return v2.Compose(
        [
            v2.RandomResizedCrop(size, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, DEVIATION),
        ]
    )


def webdataset_loader(wanted: argparse.Namespace) -> DataLoader:
    """As WebDataset's documentation does it: shards in random order, and a buffer of 1,000 samples."""
    import webdataset

    shards = sorted(glob.glob(os.path.join(glob.escape(wanted.root), "*.tar")))
    samples = (
        webdataset.WebDataset(shards, shardshuffle=100, empty_check=False)
        .shuffle(1000)
        .decode("pil")
        .to_tuple("jpg", "cls")
        .map_tuple(transform(wanted.size), lambda label: label)
        .batched(wanted.batch, partial=False)
    )
    return DataLoader(samples, batch_size=None, num_workers=wanted.workers, persistent_workers=wanted.workers > 0)


def timm_loader(wanted: argparse.Namespace) -> Iterator[list[Tensor]]:
    """As timm's train.py without a GPU: its prefetcher, which normalizes there, needs CUDA."""
    from timm.data import create_dataset, create_loader

    return create_loader(
        create_dataset("", root=wanted.root, is_training=True),
        input_size=(3, wanted.size, wanted.size),
        batch_size=wanted.batch,
        is_training=True,
        use_prefetcher=False,
        scale=(0.08, 1.0),
        ratio=(3 / 4, 4 / 3),
        hflip=0.5,
        color_jitter=None,
        interpolation="bilinear",
        mean=MEAN,
        std=DEVIATION,
        num_workers=wanted.workers,
        persistent_workers=wanted.workers > 0,
    )


LOADERS = {"torchvision": torchvision_loader, "timm": timm_loader, "webdataset": webdataset_loader}

if __name__ == "__main__":
    main()
