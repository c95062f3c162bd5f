"""A small training inside the test's own process: one rank, the embedded images, seconds at most."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from accelerate.state import AcceleratorState, GradientState, PartialState
from worlds import ALONE

from entrypoint import Failure, World
from train.config import load
from train.config.batches import compute_batch_sizes
from train.config.load import keep_last_overrides
from train.distributed import runtime
from train.logging.metrics import MetricsLogger
from train.logging.progress import Progress
from train.run import job, loop, step
from train.run.job import Job
from train.run.now import Now
from train.run.signals import Watch

# Four steps an epoch, eight in all.
TINY = (
    "data.samples=80",
    "data.image_size=8",
    "data.classes=2",
    "model.args.width=4",
    "optim.lr=0.01",
    "train.epochs=2",
    "train.global_batch_size=16",
    "train.micro_batch_size=8",
    "log.tensorboard=false",
    "log.every_steps=2",
)


@contextmanager
def opened(
    folder: Path,
    *settings: str,
    config: Path | None = None,
    world: World = ALONE,
    environ: MutableMapping[str, str] | None = None,
) -> Iterator[Job]:
    """The job of a tiny run, or of `config`, kept in `folder`."""
    words = keep_last_overrides(settings if config else [*TINY, *settings])
    loaded = load.load_config(str(config) if config else None, words)
    batch = compute_batch_sizes(loaded.train.global_batch_size, loaded.train.micro_batch_size, world.world_size)
    forget_accelerate()
    ready = runtime.start(loaded, world, environ or {}, accumulation=batch.accumulation)
    try:
        yield job.open_job(loaded, ready, folder, batch)
    finally:
        ready.close()
        forget_accelerate()


def forget_accelerate() -> None:
    """Accelerate keeps its first settings for the life of a process; a worker has but one."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def fit(todo: Job, *, watch: Watch | None = None) -> Now:
    """Train to the end, or to what `watch` has received."""
    main = todo.runtime.is_main
    at, evaluated = todo.state.step, todo.state.evaluated
    metrics = MetricsLogger(todo.folder, main=main, step=at, evaluated=evaluated, tensorboard=False, warn=print)
    shown = Progress(main=main, terminal=False, total=todo.steps.total, step=todo.state.step, out=io.StringIO())
    try:
        return loop.fit(todo, watch or Watch(), metrics, shown)
    finally:
        metrics.close()


def trained(folder: Path, *settings: str) -> tuple[Job, Now]:
    """A tiny run, finished."""
    with opened(folder, *settings) as todo:
        return todo, fit(todo)


def refused(folder: Path, *settings: str) -> Failure:
    """Why a tiny run in `folder` does not begin."""
    with pytest.raises(Failure) as caught, opened(folder, *settings):
        pass
    return caught.value


def steps_of(events: Sequence[dict[str, object]], name: str) -> list[object]:
    """The steps of all events of one kind."""
    return [event["step"] for event in events if event["event"] == name]


def after(steps: int, action: Callable[[Job], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something once so many optimizer steps are done."""
    real = step.take

    def stand_in(todo: Job, *rest: Any) -> None:
        real(todo, *rest)
        if todo.state.step == steps:
            action(todo)

    monkeypatch.setattr(step, "take", stand_in)
