"""Run by a Python on a null GPU: what the host asks of the GPU in each of a few steps between two log points.

null_gpu_steps.py FOLDER [section.key=value ...]    prints a JSON list with one object of counts for each step
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

from jobs import built

from train.worker import exit_now

WARM_UP = 4  # the first steps allocate
STEPS = 4
SETTINGS = ("data.samples=1200", "train.global_batch_size=64", "train.micro_batch_size=64", "train.epochs=2")


def read_counters() -> dict[str, int]:
    """All counters of the stand-in, by name."""
    library = ctypes.CDLL(None)
    library.null_gpu_name.restype = ctypes.c_char_p
    library.null_gpu_count.restype = ctypes.c_long
    counters: dict[str, int] = {}
    while name := library.null_gpu_name(len(counters)):
        counters[name.decode()] = library.null_gpu_count(len(counters))
    return counters


def count_steps(folder: Path, *settings: str) -> list[dict[str, int]]:
    """Train, and count in each of the last steps."""
    environ = {**os.environ, "ENTRYPOINT_DEVICE": "cuda"}
    counts = []
    with built(folder, *settings, environ=environ) as trainer:
        trainer.begin()
        stream = trainer.loader.train(trainer.sampler.micro_batches(0))
        for step in range(WARM_UP + STEPS):
            before = read_counters()
            trainer.train_step(stream)
            if step >= WARM_UP:
                counts.append({name: value - before[name] for name, value in read_counters().items()})
    return counts


if __name__ == "__main__":
    print(json.dumps(count_steps(Path(sys.argv[1]), *SETTINGS, *sys.argv[2:])))
    exit_now(0)  # in the interpreter's own end, autograd's thread for a GPU has turned it into a SIGABRT
