"""This module runs a training in blocks of steps, each on request of the benchmark's process."""

from __future__ import annotations

import io
import json
import resource
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final, TextIO

import torch

from train import compilation
from train.logging.progress import Progress
from train.models import registry
from train.trainer import Trainer

LOOPBACK: Final = "127.0.0.1"


class Disconnected(Exception):
    """The benchmark has hung up."""


class Connection:
    """The connection to the benchmark: one line of JSON for each request and for each answer."""

    def __init__(self, address: str) -> None:
        """address: PORT:TOKEN. Raises OSError."""
        port, _, self._token = address.partition(":")
        with socket.create_connection((LOOPBACK, int(port))) as connection:
            self._stream: TextIO = connection.makefile("rw")  # holds the connection from now on

    def introduce(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Say that the warm-up is over; returns the first request."""
        return self.answer({"token": self._token, **facts})

    def answer(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Send an answer and return the next request. Raises Disconnected."""
        self._stream.write(json.dumps(values) + "\n")
        self._stream.flush()
        request = self._stream.readline()
        if not request:
            self._stream.close()
            raise Disconnected
        return dict(json.loads(request))

    def serve(self, facts: Mapping[str, Any], run: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
        """Answer each request with what `run` returns, until the benchmark hangs up."""
        with suppress(Disconnected):
            request = self.introduce(facts)
            while True:
                request = self.answer(run(request))


class BlockProgress(Progress):
    """Replaces the trainer's progress display, which is called right after each step: it waits after a block."""

    def __init__(
        self,
        connection: Connection,
        device: torch.device,
        facts: Mapping[str, Any],
        *,
        warm_up: int,
        counts: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """counts: is sent with each block. The facts hold its values after the first step, so that what the rest of
        the warm-up adds can be seen."""
        super().__init__(main=False, terminal=False, out=io.StringIO())
        self._connection, self._device, self._facts, self._counts = connection, device, facts, counts
        self._step, self._last_step, self._warm_up = 0, 1, max(2, warm_up)
        self._stamps: list[Any] | None = None
        self._start_s, self._cpu_start_s = time.perf_counter(), time.process_time()
        self._is_connected, self._first_step_s, self._first_counts = False, 0.0, dict[str, Any]()

    def step(self) -> None:
        """One optimizer step is done. After the last of a block, wait for the next request."""
        self._step += 1
        if self._stamps is not None:
            self._stamps.append(self._stamp())
        if self._step >= self._last_step:
            self._end_block()

    def _end_block(self) -> None:
        self._synchronize()
        seconds, cpu_s = time.perf_counter() - self._start_s, time.process_time() - self._cpu_start_s
        if self._step == 1:
            self._first_step_s, self._last_step, self._first_counts = seconds, self._warm_up, dict(self._counts())
            return
        if self._is_connected:
            block = {
                "seconds": seconds,
                "cpu": cpu_s,
                "last": self._step,
                "stamps": self._step_seconds(),
                "memory": self._peak_memory(),
            }
            request = self._connection.answer({**block, **self._counts()})
        else:
            facts = {**self._facts, **self._first_counts, "first_step_s": self._first_step_s}
            request, self._is_connected = self._connection.introduce(facts), True
        self._last_step = self._step + int(request["steps"])
        self._synchronize()
        self._start_s, self._cpu_start_s = time.perf_counter(), time.process_time()
        self._stamps = [self._stamp()] if request.get("stamps") else None

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _peak_memory(self) -> int:
        """Bytes: of the GPU, what torch has reserved; of the host, what this process used."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_reserved(self._device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _stamp(self) -> Any:
        """A GPU runs behind the program, so its own clock counts."""
        if self._device.type == "cpu":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _step_seconds(self) -> list[float]:
        """Seconds from the end of each step to the end of the next one."""
        neighbours = pairwise(self._stamps or [])
        if self._device.type == "cpu":
            return [after - before for before, after in neighbours]
        return [before.elapsed_time(after) / 1e3 for before, after in neighbours]


def train_in_blocks(trainer: Trainer, address: str | None, *, warm_up: int) -> None:
    """Train on request of the benchmark at `address`. None: another rank has the connection."""
    if address is not None:
        counts = compilation.count_compiled if trainer.compiled else dict
        trainer.progress = BlockProgress(
            Connection(address), trainer.runtime.device, describe_training(trainer), warm_up=warm_up, counts=counts
        )
    with suppress(Disconnected):
        trainer.fit()


def describe_training(trainer: Trainer) -> dict[str, Any]:
    """What the measured times belong to."""
    return {
        "ranks": trainer.runtime.world.world_size,
        "precision": trainer.runtime.precision,
        "parameters": registry.count_parameters(trainer.state.network),
        "batch": trainer.batches.micro,
        "accumulation": trainer.batches.accumulation,
        "steps_per_epoch": trainer.steps.per_epoch,
        "loader": trainer.loader.description,
        "compile_s": trainer.compiled.seconds if trainer.compiled else 0.0,
        **(split_compile_time(trainer.compiled.seconds) if trainer.compiled else {}),
    }


def split_compile_time(seconds: float) -> dict[str, float]:
    """Split the time of compiling, by torch's own account.

    A kept cache can save the generation of code. It cannot save tracing, nor the rest, most of which is imports.
    """
    from torch._dynamo.utils import compile_times

    names, totals = compile_times(repr="csv", aggregate=True)
    spent = {name: float(str(total)) for name, total in zip(names, totals, strict=True)}
    code = spent.get("compile_fx_inner", 0.0)
    compiler_s = spent.get("_compile.compile_inner", 0.0) + spent.get("backward._backward_impl", 0.0)
    return {"compile_code_s": code, "compile_trace_s": compiler_s - code, "compile_rest_s": seconds - compiler_s}
