"""A small training inside the test's own process: one rank, the embedded images, seconds at most."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from accelerate.state import AcceleratorState, GradientState, PartialState
from worlds import ALONE

from entrypoint import Failure, World
from train.build import build_trainer
from train.config import load
from train.config.load import keep_last_overrides
from train.distributed import runtime
from train.logging.progress import Progress
from train.rank_context import RankContext
from train.run.stop import StopSignals
from train.trainer import BatchStream, Trainer

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
def built(
    folder: Path,
    *settings: str,
    config: Path | None = None,
    world: World = ALONE,
    environ: MutableMapping[str, str] | None = None,
    signals: StopSignals | None = None,
    out: io.StringIO | None = None,
) -> Iterator[Trainer]:
    """The trainer of a tiny run, or of `config`, whose run folder is `folder`. out: takes what rank 0 prints."""
    words = keep_last_overrides(settings if config else [*TINY, *settings])
    loaded = load.load_config(str(config) if config else None, words)
    forget_accelerate()
    rank_runtime = runtime.start(loaded, world, environ or {})
    context = RankContext(world=world, folder=folder, signals=signals or StopSignals())
    progress = Progress(main=rank_runtime.is_main, terminal=False, out=out or io.StringIO())
    try:
        trainer = build_trainer(loaded, rank_runtime, context, progress=progress)
        progress.start(step=trainer.state.step, total=trainer.steps.total)
        yield trainer
    finally:
        rank_runtime.close()
        forget_accelerate()


def forget_accelerate() -> None:
    """Accelerate keeps its first settings for the life of a process; a worker has but one."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def trained(folder: Path, *settings: str) -> Trainer:
    """The trainer of a tiny run, which is finished."""
    with built(folder, *settings) as trainer:
        trainer.fit()
        return trainer


def refused(folder: Path, *settings: str) -> Failure:
    """Why a tiny run in `folder` does not begin."""
    with pytest.raises(Failure) as caught, built(folder, *settings):
        pass
    return caught.value


def steps_of(events: Sequence[dict[str, object]], name: str) -> list[object]:
    """The steps of all events of one kind."""
    return [event["step"] for event in events if event["event"] == name]


def after(steps: int, action: Callable[[Trainer], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something once so many optimizer steps are done."""
    real = Trainer.train_step

    def stand_in(trainer: Trainer, batches: BatchStream) -> None:
        real(trainer, batches)
        if trainer.state.step == steps:
            action(trainer)

    monkeypatch.setattr(Trainer, "train_step", stand_in)
