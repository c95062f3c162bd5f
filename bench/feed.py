"""This module makes our batches, a block at a time on request: in memory for row 7, else from files."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping, Sequence

import torch

from bench.blocks import Connection
from bench.training import MANY_EPOCHS
from train.config import load
from train.config.batches import compute_batch_sizes, count_steps
from train.data import registry
from train.data.batch import Batch
from train.data.loader import open_loader
from train.data.sampler import BatchSampler, MicroBatch
from train.data.shards import order as shard_order


def main(words: Sequence[str], environ: Mapping[str, str]) -> None:
    """`--pace PORT:TOKEN --batch N --samples N --size N [--cores N] [--root FOLDER --workers N [--shards]]`."""
    arguments = build_parser().parse_args(words)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
    torch.set_num_threads(1)
    settings = memory_settings(arguments.samples)
    if arguments.root:
        settings = file_settings("shards" if arguments.shards else "folder", arguments.root, arguments.workers)
    batches = make_batches(settings, batch=arguments.batch, size=arguments.size, cores=arguments.cores)
    next(batches)
    facts = {"batch": arguments.batch, "workers": arguments.workers, "pid": os.getpid()}
    Connection(arguments.pace).serve(facts, lambda request: _run_block(batches, int(request["steps"])))


def build_parser() -> argparse.ArgumentParser:
    """The command line that `python -m bench input` writes."""
    parser = argparse.ArgumentParser(prog="bench.feed", allow_abbrev=False)
    parser.add_argument("--pace", metavar="PORT:TOKEN", required=True)
    for name in ("batch", "samples", "size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--root", metavar="FOLDER", help="image files, one folder for each class")
    parser.add_argument("--shards", action="store_true", help="the folder holds tar shards")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--cores", type=int, default=1, help="use so many, all workers together")
    return parser


def memory_settings(samples: int) -> list[str]:
    """Drawn images in memory, with the default augmentation."""
    return ["data.name=synthetic", f"data.samples={samples}", "data.loader=memory"]


def file_settings(name: str, root: str, workers: int) -> list[str]:
    """Image files with ImageNet's augmentation."""
    settings = [f"data.root={root}", f"data.name={name}", "data.loader=workers", f"data.workers={workers}"]
    return [
        *settings,
        "data.augment=imagenet",
        "data.normalize={mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]}",
    ]


def make_batches(
    settings: Sequence[str], *, batch: int, size: int, cores: int = 1
) -> Iterator[tuple[MicroBatch, Batch]]:
    """Augmented batches as a training gets them, without an end."""
    words = [*settings, f"data.image_size={size}", "data.val_fraction=0", f"train.global_batch_size={batch}"]
    config = load.load_config(None, words)
    data = config.data
    splits = registry.open_splits(data)
    loader = open_loader(splits, data, seed=0, device=torch.device("cpu"), cores=cores)
    sizes, samples = compute_batch_sizes(batch, batch, 1), len(splits.training.labels)
    steps = count_steps(sizes, samples, epochs=MANY_EPOCHS, max_steps=None)
    order = shard_order.draw_orders(splits.training.runs(), config)
    sampler = BatchSampler(batches=sizes, steps=steps, samples=samples, rank=0, seed=0, shard_order=order)
    return loader.train(sampler.micro_batches(0))


def _run_block(batches: Iterator[object], number: int) -> dict[str, float]:
    """Seconds by the clock, and of processor time."""
    start, cpu_start = time.perf_counter(), time.process_time()
    for _ in range(number):
        next(batches)
    return {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu_start}
