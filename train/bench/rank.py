"""The trainer of a measured run, and its `fit` at work."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from entrypoint import Heartbeat, World
from train import compilation
from train.bench.gate import Gate, Line, Over
from train.build import build_trainer
from train.config.batches import compute_batch_sizes
from train.config.schema import RunConfig
from train.distributed import runtime
from train.models import registry
from train.rank_context import RankContext
from train.trainer import Trainer


@contextmanager
def opened(
    config: RunConfig, world: World, environ: MutableMapping[str, str], folder: Path, heartbeat: Heartbeat
) -> Iterator[Trainer]:
    """As a session builds it, without the run folder's lock and records, and without a checkpoint to resume from."""
    train = config.train
    batches = compute_batch_sizes(train.global_batch_size, train.micro_batch_size, world.world_size)
    rank_runtime = runtime.start(config, world, environ, accumulation=batches.accumulation)
    try:
        yield build_trainer(config, rank_runtime, RankContext(world=world, folder=folder, heartbeat=heartbeat))
    finally:
        rank_runtime.close()


def led(trainer: Trainer, address: str | None, *, warm_up: int) -> None:
    """Train as the bench at `address` says; None: as rank 0 does."""
    if address is not None:
        counts = compilation.count_compiled if trainer.compiled else dict
        device = trainer.runtime.device
        trainer.progress = Gate(Line(address), device, facts(trainer), warm_up=warm_up, counts=counts)
    with suppress(Over):
        trainer.fit()


def facts(trainer: Trainer) -> dict[str, Any]:
    """What the figures belong to."""
    return {
        "ranks": trainer.runtime.world.world_size,
        "precision": trainer.runtime.precision,
        "parameters": registry.count_parameters(trainer.state.network),
        "batch": trainer.batches.micro,
        "accumulation": trainer.batches.accumulation,
        "steps_per_epoch": trainer.steps.per_epoch,
        "loader": trainer.loader.description,
        "compile_s": trainer.compiled.seconds if trainer.compiled else 0.0,
        **(compile_parts(trainer.compiled.seconds) if trainer.compiled else {}),
    }


def compile_parts(seconds: float) -> dict[str, float]:
    """Of so long, what a kept cache may save, code, and what it does not: following the program, and the rest, of which
    imports are most. By torch's own account."""
    from torch._dynamo.utils import compile_times

    names, sums = compile_times(repr="csv", aggregate=True)
    spent = {name: float(str(total)) for name, total in zip(names, sums, strict=True)}
    code = spent.get("compile_fx_inner", 0.0)
    at_work = spent.get("_compile.compile_inner", 0.0) + spent.get("backward._backward_impl", 0.0)
    return {"compile_code_s": code, "compile_trace_s": at_work - code, "compile_rest_s": seconds - at_work}
