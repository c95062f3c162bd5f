"""This module runs our training a block of steps at a time on request, with or without a checkpoint, for row 11."""

from __future__ import annotations

import argparse
import time
from collections.abc import MutableMapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from bench.blocks import Connection
from entrypoint import DEVICE_VARIABLE, Heartbeat
from train.build import open_trainer
from train.config import load
from train.config.schema import CheckpointConfig
from train.inference.predict import SINGLE_PROCESS_WORLD
from train.trainer import Trainer


def main(words: Sequence[str], environ: MutableMapping[str, str]) -> None:
    """`--pace PORT:TOKEN --device cpu|cuda --folder DIR [section.key=value ...]`."""
    arguments = build_parser().parse_args(words)
    environ[DEVICE_VARIABLE] = arguments.device
    config, folder = load.load_config(None, arguments.overrides), Path(arguments.folder)
    with open_trainer(config, SINGLE_PROCESS_WORLD, environ, folder, Heartbeat()) as trainer:
        trainer.begin()
        with trainer.checkpointer.finishing():
            _serve(Connection(arguments.pace), CheckpointBlocks(trainer))


def build_parser() -> argparse.ArgumentParser:
    """The command line that `python -m bench checkpoint` writes."""
    parser = argparse.ArgumentParser(prog="bench.checkpoint_blocks", allow_abbrev=False)
    parser.add_argument("--pace", metavar="PORT:TOKEN", required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--folder", metavar="DIR", required=True)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    return parser


class CheckpointBlocks:
    """Timed blocks of a trainer's steps."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._copies: list[Tensor] = []
        self._batches = trainer.loader.train(trainer.sampler.micro_batches(0))

    def run(self, steps: int, *, save: bool) -> dict[str, float]:
        """Run one block: its seconds, and how long training stood still for the checkpoint.

        The save starts after the first step. If it is not committed after the last one, the block waits for it.
        """
        trainer = self._trainer
        self._synchronize()
        stalled, start = 0.0, time.perf_counter()
        for number in range(steps):
            trainer.train_step(self._batches)
            if save and number == 0:
                self._synchronize()
                before = time.perf_counter()
                trainer.save()
                self._synchronize()
                stalled = time.perf_counter() - before
        self._synchronize()
        if save:
            stalled += trainer.checkpointer.waited
        trainer.checkpointer.wait()
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "save_s": stalled, "copy_s": self._time_copy()}

    def _time_copy(self) -> float:
        """Seconds for a plain copy of the last snapshot in the host's memory: a snapshot takes at least as long."""
        tensors = list(self._trainer.checkpointer.buffers.buffers.values())
        if [copy.numel() for copy in self._copies] != [tensor.numel() for tensor in tensors]:
            self._copies = [tensor.clone() for tensor in tensors]
        start = time.perf_counter()
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor)
        return time.perf_counter() - start

    def _synchronize(self) -> None:
        if self._trainer.runtime.device.type == "cuda":
            torch.cuda.synchronize(self._trainer.runtime.device)


def _serve(connection: Connection, blocks: CheckpointBlocks) -> None:
    """Run a block for each request until the benchmark hangs up."""
    for _ in range(CheckpointConfig().keep + 1):  # until each save deletes an older checkpoint
        blocks.run(2, save=True)
    connection.serve({}, lambda request: blocks.run(int(request["steps"]), save=bool(request.get("save"))))
