"""The job of a measured run, and our own `fit` at work on it."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from entrypoint import Heartbeat, World
from train.bench.gate import Gate, Line, Over
from train.config.batches import compute_batch_sizes
from train.config.schema import RunConfig
from train.distributed import runtime
from train.logging.metrics import MetricsLogger
from train.logging.progress import Progress
from train.models import registry
from train.run import compiling, job
from train.run.job import Job
from train.run.loop import fit
from train.run.signals import Watch


@contextmanager
def opened(
    config: RunConfig, world: World, environ: MutableMapping[str, str], folder: Path, pulse: Heartbeat
) -> Iterator[Job]:
    """As a session opens it, without what belongs to a run's folder: lease, facts, a checkpoint to go on from."""
    train = config.train
    batch = compute_batch_sizes(train.global_batch_size, train.micro_batch_size, world.world_size)
    ready = runtime.start(config, world, environ, accumulation=batch.accumulation)
    try:
        yield job.open_job(config, ready, folder, batch, pulse=pulse)
    finally:
        ready.close()


def led(todo: Job, place: str | None, *, warm_up: int) -> None:
    """Train as the bench at `place` says; None: as rank 0 does."""
    total = todo.steps.total
    shown = Progress(main=False, terminal=False, total=total, step=0)
    if place is not None:
        counts = compiling.counts if todo.compiled else dict
        line, device = Line(place), todo.runtime.device
        shown = Gate(line, device, facts(todo), warm_up=warm_up, total=total, counts=counts)
    metrics = MetricsLogger(todo.folder, main=todo.runtime.is_main, step=0, tensorboard=False, warn=print)
    with suppress(Over):
        fit(todo, Watch(), metrics, shown)


def facts(todo: Job) -> dict[str, Any]:
    """What the figures belong to."""
    return {
        "ranks": todo.runtime.world.world_size,
        "precision": todo.runtime.precision,
        "parameters": registry.count_parameters(todo.state.network),
        "batch": todo.batches.micro,
        "accumulation": todo.batches.accumulation,
        "steps_per_epoch": todo.steps.per_epoch,
        "loader": todo.loader.kind,
        "compile_s": todo.compiled.seconds if todo.compiled else 0.0,
        **(compile_parts(todo.compiled.seconds) if todo.compiled else {}),
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
