"""Our batches in memory, on one core, a block at a time as a bench asks for them: for row 7."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, MutableMapping, Sequence

import torch

from train.bench import noise
from train.bench.gate import Line, Over
from train.config import load
from train.config.batches import compute_batch_sizes, count_steps
from train.config.schema import DataConfig
from train.data.loader import Batch, open_loader
from train.data.sampler import BatchSampler, MicroBatch

FOREVER = 1_000_000  # epochs


def main(words: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """`--pace PORT:TOKEN --batch N --samples N --size N`."""
    arguments = build_parser().parse_args(words)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    stream = drawn(arguments.batch, arguments.samples, arguments.size)
    next(stream)
    line = Line(arguments.pace)
    asked = line.ready({"batch": arguments.batch})
    try:
        while True:
            asked = line.answer(_block(stream, int(asked["steps"])))
    except Over:
        return


def build_parser() -> argparse.ArgumentParser:
    """The command line that `train bench input` writes."""
    parser = argparse.ArgumentParser(prog="train.bench.feed", allow_abbrev=False)
    parser.add_argument("--pace", metavar="PORT:TOKEN", required=True)
    for name in ("batch", "samples", "size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    return parser


def drawn(batch: int, samples: int, size: int) -> Iterator[tuple[MicroBatch, Batch]]:
    """Augmented batches as a training sees them, for ever."""
    words = [f"data.name={noise.NAME}", f"data.samples={samples}", f"data.image_size={size}", "data.loader=memory"]
    data: DataConfig = load.load_config(None, [*words, "data.val_fraction=0"]).data
    sets = noise.images(data)
    loader = open_loader(sets, data, seed=0, device=torch.device("cpu"), cores=1)
    cut = compute_batch_sizes(batch, batch, 1)
    course = BatchSampler(
        batches=cut, steps=count_steps(cut, samples, epochs=FOREVER, max_steps=None), samples=samples, rank=0, seed=0
    )
    return loader.train(course.micro_batches(0))


def _block(stream: Iterator[object], number: int) -> dict[str, float]:
    """Seconds by the clock, and of processors."""
    began, used = time.perf_counter(), time.process_time()
    for _ in range(number):
        next(stream)
    return {"seconds": time.perf_counter() - began, "cpu": time.process_time() - used}
