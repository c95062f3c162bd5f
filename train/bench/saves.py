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
from train.trainer import Trainer

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
    arguments = build_parser().parse_args(words)
    environ["ENTRYPOINT_DEVICE"] = arguments.device
    folder = Path(arguments.folder)
    with rank.opened(load.load_config(None, arguments.overrides), ALONE, environ, folder, Heartbeat()) as trainer:
        trainer.begin()
        with trainer.loop.writer:
            _led(Line(arguments.pace), Blocks(trainer))


def build_parser() -> argparse.ArgumentParser:
    """The command line that `train bench checkpoint` writes."""
    parser = argparse.ArgumentParser(prog="train.bench.saves", allow_abbrev=False)
    parser.add_argument("--pace", metavar="PORT:TOKEN", required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--folder", metavar="DIR", required=True)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    return parser


class Blocks:
    """Steps of a trainer, timed."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._copies: list[Tensor] = []
        self._batches = trainer.loader.train(trainer.sampler.micro_batches(0))

    def timed(self, steps: int, *, save: bool) -> dict[str, float]:
        """Seconds of all steps; how long training stood still for the checkpoint; and until it was committed.

        The save starts after the first step; what is not written after the last one is waited for.
        """
        trainer = self._trainer
        self._synchronize()
        stalled, began = 0.0, time.perf_counter()
        for number in range(steps):
            trainer.train_step(self._batches)
            if save and number == 0:
                self._synchronize()
                before = time.perf_counter()
                trainer.save()
                self._synchronize()
                stalled = time.perf_counter() - before
        self._synchronize()
        if save and trainer.loop.pending_save is not None:
            stalled += trainer.loop.pending_save.waited
        before_wait = time.perf_counter() - began
        trainer.wait_for_save()
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "save_s": stalled, "waited_s": seconds - before_wait, "copy_s": self._copy_s()}

    def _copy_s(self) -> float:
        """Seconds for a plain copy of the last snapshot in the host's memory: the least that a snapshot takes."""
        tensors = list(self._trainer.loop.snapshot_buffers.buffers.values())
        if [copy.numel() for copy in self._copies] != [tensor.numel() for tensor in tensors]:
            self._copies = [tensor.clone() for tensor in tensors]
        began = time.perf_counter()
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor)
        return time.perf_counter() - began

    def _synchronize(self) -> None:
        if self._trainer.runtime.device.type == "cuda":
            torch.cuda.synchronize(self._trainer.runtime.device)


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
