"""The input pipelines of torchvision, timm, WebDataset, LitData and SPDL for ImageNet: JPEG files, or tar shards or
chunks of them, cut at random, scaled to 224 pixels, mirrored and normalized in workers; timed without training.

python bench/peers/photos.py --library torchvision --root FOLDER --workers 4
"""

from __future__ import annotations

import argparse
import glob
import itertools
import math
import os
import random
import sys
from collections.abc import Iterator

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # the image's Python does not look there by itself

import torch
import workload
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# An epoch is the same files so many times, because workers wait at its end: ImageNet's has 40,000 batches of 32.
REPEATS = 1000


def main() -> None:
    parser = workload.arguments(__doc__.partition(":")[0])
    parser.add_argument("--library", choices=tuple(LOADERS), required=True)
    about = "a folder of each class's images; for webdataset of *.tar, for litdata what litdata_chunks.py wrote"
    parser.add_argument("--root", required=True, help=about)
    about = "0: in the process that asks for the batches; spdl has threads, and at least 1"
    parser.add_argument("--workers", type=int, default=1, help=about)
    parser.add_argument("--cores", type=int, help="use so many, all workers together")
    wanted = parser.parse_args()
    if wanted.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: wanted.cores])
    torch.set_num_threads(1)
    if wanted.library == "spdl":
        wanted.workers = max(1, wanted.workers)
    stream = itertools.chain.from_iterable(itertools.repeat(LOADERS[wanted.library](wanted)))
    facts = {"peer": wanted.library, "workers": wanted.workers, "pid": os.getpid()}
    workload.timed(lambda: next(stream), wanted, torch.device("cpu"), **facts)


def torchvision_loader(wanted: argparse.Namespace) -> DataLoader:
    """As torchvision's reference does it with v2 transforms and PIL images."""
    return DataLoader(
        ConcatDataset([ImageFolder(wanted.root, transform(wanted.size))] * REPEATS),
        batch_size=wanted.batch,
        shuffle=True,
        drop_last=True,
        num_workers=wanted.workers,
        persistent_workers=wanted.workers > 0,
    )


def transform(size: int) -> v2.Compose:
    """Of PIL images, or of bytes as tensors."""
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
        .repeat(REPEATS)
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


def litdata_loader(wanted: argparse.Namespace) -> DataLoader:
    """As LitData's own benchmark of ImageNet does it: it keeps the JPEGs, and decodes them to tensors."""
    from litdata import StreamingDataLoader, StreamingDataset

    augment = transform(wanted.size)
    return StreamingDataLoader(
        StreamingDataset(
            wanted.root,
            shuffle=True,
            subsample=float(REPEATS),
            transform=lambda sample: (augment(sample[0]), sample[1]),
        ),
        batch_size=wanted.batch,
        drop_last=True,
        num_workers=wanted.workers,
        persistent_workers=wanted.workers > 0,
    )


def spdl_loader(wanted: argparse.Namespace) -> Iterator[tuple[Tensor, list[int]]]:
    """As SPDL's examples do it: threads decode, and FFmpeg's filters augment.

    The examples for ImageNet scale whole images. The crop and the mirror image are filters that differ from image to
    image, as its documentation of augmentation has them.
    """
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    samples = ImageFolder(wanted.root).samples

    def shuffled() -> Iterator[tuple[str, int]]:
        while True:
            yield from random.sample(samples, len(samples))

    def decode(sample: tuple[str, int]) -> tuple[object, int]:
        packets = spdl.io.demux_image(sample[0])
        filters = random_filters(packets.width, packets.height, wanted.size)
        filters = spdl.io.get_video_filter_desc(filter_desc=filters, pix_fmt="rgb24")
        return spdl.io.decode_packets(packets, filter_desc=filters), sample[1]

    def collate(decoded: list[tuple[object, int]]) -> tuple[Tensor, list[int]]:
        frames, labels = zip(*decoded, strict=True)
        images = spdl.io.to_torch(spdl.io.convert_frames(list(frames))).permute(0, 3, 1, 2)
        return v2.functional.normalize(images.float().div_(255), MEAN, DEVIATION, inplace=True), list(labels)

    builder = PipelineBuilder().add_source(shuffled()).pipe(decode, concurrency=wanted.workers)
    builder = builder.aggregate(wanted.batch).pipe(collate).add_sink(wanted.workers)
    pipeline = builder.build(num_threads=wanted.workers)
    with pipeline.auto_stop():
        yield from pipeline


def random_filters(width: int, height: int, size: int) -> str:
    """FFmpeg's words for torchvision's RandomResizedCrop and RandomHorizontalFlip."""
    for _ in range(10):
        area, ratio = width * height * random.uniform(0.08, 1), math.exp(random.uniform(*map(math.log, (3 / 4, 4 / 3))))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= width and h <= height:
            break
    else:
        w = h = min(width, height)
    crop = f"crop={w}:{h}:{random.randint(0, width - w)}:{random.randint(0, height - h)}"
    return f"{crop},scale={size}:{size}:flags=bilinear" + random.choice(("", ",hflip"))


LOADERS = {
    "torchvision": torchvision_loader,
    "timm": timm_loader,
    "webdataset": webdataset_loader,
    "litdata": litdata_loader,
    "spdl": spdl_loader,
}

if __name__ == "__main__":
    main()
