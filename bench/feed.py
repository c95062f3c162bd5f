"""This module draws our batches in memory on one core, a block at a time on request, for row 7."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence

import torch

from train.bench.blocks import Connection, Disconnected
from train.bench.random_images import random_images
from train.bench.training import MANY_EPOCHS, RANDOM_IMAGES
from train.config import load
from train.config.batches import compute_batch_sizes, count_steps
from train.config.schema import DataConfig
from train.data.loader import Batch, open_loader
from train.data.sampler import BatchSampler, MicroBatch


def main(words: Sequence[str]) -> None:
    """`--pace PORT:TOKEN --batch N --samples N --size N`."""
    arguments = build_parser().parse_args(words)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    batches = draw_batches(arguments.batch, arguments.samples, arguments.size)
    next(batches)
    connection = Connection(arguments.pace)
    request = connection.introduce({"batch": arguments.batch})
    try:
        while True:
            request = connection.answer(_run_block(batches, int(request["steps"])))
    except Disconnected:
        return


def build_parser() -> argparse.ArgumentParser:
    """The command line that `python -m bench input` writes."""
    parser = argparse.ArgumentParser(prog="bench.feed", allow_abbrev=False)
    parser.add_argument("--pace", metavar="PORT:TOKEN", required=True)
    for name in ("batch", "samples", "size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser


def draw_batches(batch: int, samples: int, size: int) -> Iterator[tuple[MicroBatch, Batch]]:
    """Augmented batches as a training gets them, without an end."""
    words = [f"data.name={RANDOM_IMAGES}", f"data.samples={samples}", f"data.image_size={size}", "data.loader=memory"]
    data: DataConfig = load.load_config(None, [*words, "data.val_fraction=0"]).data
    loader = open_loader(random_images(data), data, seed=0, device=torch.device("cpu"), cores=1)
    sizes = compute_batch_sizes(batch, batch, 1)
    steps = count_steps(sizes, samples, epochs=MANY_EPOCHS, max_steps=None)
    sampler = BatchSampler(batches=sizes, steps=steps, samples=samples, rank=0, seed=0)
    return loader.train(sampler.micro_batches(0))


def _run_block(batches: Iterator[object], number: int) -> dict[str, float]:
    """Seconds by the clock, and of processor time."""
    start, cpu_start = time.perf_counter(), time.process_time()
    for _ in range(number):
        next(batches)
    return {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu_start}


if __name__ == "__main__":
    main(sys.argv[1:])
