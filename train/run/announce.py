"""What happens in a run becomes a line on the console and one of the record; an evaluation also a matrix."""

from __future__ import annotations

from typing import Final

from train.evaluation.evaluate import Evaluation
from train.evaluation.metrics import confusion_json, format_epoch_line, metrics_to_log
from train.logging.metrics import MetricsLogger
from train.logging.progress import EpochStats, Progress
from train.run import compiling
from train.run.job import Job
from train.run.now import Now

CONFUSION: Final = "confusion.json"
CONFUSION_BEST: Final = "confusion-best.json"  # beside it: what best.json scores, class by class
UNKNOWN: Final = EpochStats(seconds=None, images_per_s=None, loss=None)


def evaluation(todo: Job, now: Now, measured: Evaluation, metrics: MetricsLogger, progress: Progress) -> None:
    """Say what came out after the state's step. Never fails: what cannot be written is counted and said."""
    step, result, config = todo.state.step, measured.result, todo.config
    metrics.write("eval", step=step, epoch=-(-step // todo.steps.per_epoch), **metrics_to_log(result))
    _confusion(CONFUSION, todo, measured, metrics)
    epoch_line(todo, now, progress, format_epoch_line(result, config.eval.metric))


def best(todo: Job, measured: Evaluation, metrics: MetricsLogger) -> None:
    """Keep what a later evaluation, which is not as good, would overwrite. Never fails, as above."""
    _confusion(CONFUSION_BEST, todo, measured, metrics)


def _confusion(name: str, todo: Job, measured: Evaluation, metrics: MetricsLogger) -> None:
    if measured.confusion is not None and todo.runtime.is_main:
        metrics.replace(name, confusion_json(todo.state.step, todo.classes, measured.confusion.tolist()))


def epoch_line(todo: Job, now: Now, progress: Progress, measured: str | None = None) -> None:
    """Say once what the epoch came to that ends with the state's step, or the part of one that a training ends with.

    Where an earlier start has done its steps, only what was measured is known.
    """
    step, per_epoch = todo.state.step, todo.steps.per_epoch
    told, now.epoch = now.epoch or UNKNOWN, None
    progress.epoch(
        step=step,
        epoch=-(-step // per_epoch),
        epochs=todo.config.train.epochs,
        whole=step % per_epoch == 0,
        figures=told,
        measured=measured,
    )


def recompiled(todo: Job, now: Now, metrics: MetricsLogger, progress: Progress) -> None:
    """Say it where code was compiled after the first step: all ranks wait for it, seconds to minutes."""
    if todo.compiled is None or (graphs := compiling.counts()["graphs"]) == now.graphs:
        return
    more, now.graphs = graphs - now.graphs, graphs
    metrics.write("compiled", step=todo.state.step, graphs=more)
    progress.say(
        f"warning: graphs compiled again by step {todo.state.step}: {more}; the model's code depends on what changes "
        "from step to step (TORCH_LOGS=recompiles says on what), or set train.compile=false"
    )
