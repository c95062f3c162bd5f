"""Our training, a block of steps at a time as a bench asks for them, with or without a checkpoint: for row 11."""

from __future__ import annotations

import argparse
import time
from collections.abc import MutableMapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from entrypoint import Heartbeat, World
from train.bench import rank
from train.bench.gate import Line, Over
from train.config import load
from train.config.schema import CheckpointConfig
from train.logging.metrics import MetricsLogger
from train.run import now, saving, step
from train.run.job import Job
from train.run.now import Now
from train.run.signals import Watch
from train.run.step import Stream

ALONE = World(
    rank=0,
    local_rank=0,
    world_size=1,
    local_world_size=1,
    node_rank=0,
    num_nodes=1,
    master_addr="127.0.0.1",
    master_port=1,
)


def main(words: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """`--pace PORT:TOKEN --device cpu|cuda --folder DIR [section.key=value ...]`."""
    wanted = build_parser().parse_args(words)
    environ["ENTRYPOINT_DEVICE"] = wanted.device
    folder = Path(wanted.folder)
    with rank.opened(load.load_config(None, wanted.overrides), ALONE, environ, folder, Heartbeat()) as todo:
        metrics = MetricsLogger(folder, main=True, step=0, tensorboard=False, warn=lambda line: None)
        kept = now.begin(todo, Watch(), time.monotonic)
        with kept.writer:
            _led(Line(wanted.pace), Blocks(todo, kept, metrics))


def build_parser() -> argparse.ArgumentParser:
    """The command line that `train bench checkpoint` writes."""
    parser = argparse.ArgumentParser(prog="train.bench.saves", allow_abbrev=False)
    parser.add_argument("--pace", metavar="PORT:TOKEN", required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--folder", metavar="DIR", required=True)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    return parser


class Blocks:
    """Steps of a job, timed."""

    def __init__(self, todo: Job, kept: Now, metrics: MetricsLogger) -> None:
        self._todo, self._kept, self._metrics = todo, kept, metrics
        self._room: list[Tensor] = []
        self._stream: Stream = todo.loader.train(todo.course.pieces(0))

    def timed(self, steps: int, *, save: bool) -> dict[str, float]:
        """Seconds of all; how long training stood for the checkpoint; and until it was committed.

        It begins after the first step, and what is not written when the last is done is waited for.
        """
        self._wait()
        stalled, began = 0.0, time.perf_counter()
        for number in range(steps):
            step.take(self._todo, self._kept, self._stream)
            if save and number == 0:
                self._wait()
                before = time.perf_counter()
                saving.save(self._todo, self._kept, self._metrics)
                self._wait()
                stalled = time.perf_counter() - before
        self._wait()
        if save and self._kept.saving is not None:
            stalled += self._kept.saving.waited
        behind = time.perf_counter() - began
        saving.settle(self._todo, self._kept, self._metrics)
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "save_s": stalled, "waited_s": seconds - behind, "copy_s": self._copy_s()}

    def _copy_s(self) -> float:
        """Seconds for a bare copy of what was kept last, in the host's memory: what a snapshot takes there at least."""
        kept = list(self._kept.memory.buffers.values())
        if [one.numel() for one in self._room] != [one.numel() for one in kept]:
            self._room = [one.clone() for one in kept]
        began = time.perf_counter()
        for room, one in zip(self._room, kept, strict=True):
            room.copy_(one)
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self._todo.runtime.device.type == "cuda":
            torch.cuda.synchronize(self._todo.runtime.device)


def _led(line: Line, blocks: Blocks) -> None:
    """Do as the bench says until it hangs up."""
    for _ in range(CheckpointConfig().keep + 1):  # until one is deleted for each that is saved
        blocks.timed(2, save=True)
    asked = line.ready({})
    try:
        while True:
            asked = line.answer(blocks.timed(int(asked["steps"]), save=bool(asked.get("save"))))
    except Over:
        return
