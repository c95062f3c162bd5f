"""Decides the settings that depend on the task: the defaults of eval.metric and optim.lr, and which keys act on it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Final

from entrypoint import ExitCode, Failure
from train.config.optimizers import OPTIMIZERS, usual_learning_rate
from train.config.schema import OptimConfig, RunConfig
from train.metrics import DEFAULT_METRIC, METRICS, metrics_of
from train.tasks import AUTO, CLASSIFICATION, REGRESSION, TASKS

# All keys that act on some tasks only.
TASK_KEYS: Final = tuple(sorted(set().union(*(task.keys for task in TASKS.values()))))


def with_task_defaults(config: RunConfig, task: str) -> RunConfig:
    """The config of a run of this task: optim.lr is a number, and eval.metric one of the task's if it was not set.

    Raises:
        Failure: USAGE for a metric of another task, for a key that does nothing for this one, and as
            `resolve_learning_rate`.
    """
    _refuse_unused_keys(config, task)
    _refuse_other_loss(config, task)
    config = replace(config, optim=resolve_learning_rate(config, task))
    name = config.eval.metric
    if task in METRICS[name].tasks:
        return config
    if name != DEFAULT_METRIC.name:
        raise Failure(
            f"eval.metric {name} does not go with data.task {task}",
            found=f"eval.metric: {name}",
            expected=f"one of {', '.join(metrics_of(task))}",
            fix=f"set eval.metric={TASKS[task].default_metric}, or leave it out",
            code=ExitCode.USAGE,
        )
    return replace(config, eval=replace(config.eval, metric=TASKS[task].default_metric))


def resolve_learning_rate(config: RunConfig, task: str = CLASSIFICATION) -> OptimConfig:
    """The section `optim` with the highest learning rate of the run in the place of `lr: auto`.

    A run records it, so that no later rule changes a run that resumes.

    Raises:
        Failure: USAGE for an optimizer without a usual rate.
    """
    optim = config.optim
    if optim.lr != AUTO:
        return optim
    rate = usual_learning_rate(
        optim.name,
        optim.lr_scaling,
        config.train.global_batch_size,
        is_fine_tuning=config.model.weights is not None,
        is_regression=task == REGRESSION,
    )
    if rate is None:
        raise Failure(
            f"optim.lr auto has no rate for optim.name {optim.name}",
            expected=f"one of {', '.join(name for name, entry in OPTIMIZERS.items() if entry.learning_rate)}",
            fix="set optim.lr to a number: `train find-lr` suggests one, and earlier versions took optim.lr=0.1",
            code=ExitCode.USAGE,
        )
    return replace(optim, lr=rate, lr_scaling="none")


def _refuse_unused_keys(config: RunConfig, task: str) -> None:
    values, defaults = asdict(config), asdict(RunConfig())
    for key in TASK_KEYS:
        section, name = key.split(".")
        value = values[section][name]
        if key in TASKS[task].keys or value == defaults[section][name]:
            continue
        others = " or ".join(other.name for other in TASKS.values() if key in other.keys)
        raise Failure(
            f"{key} does not go with data.task {task}",
            found=f"{key}: {value}",
            fix=f"leave {key} out: it acts on {others}",
            code=ExitCode.USAGE,
        )


def _refuse_other_loss(config: RunConfig, task: str) -> None:
    loss, losses = config.optim.loss, TASKS[task].losses
    if loss not in (AUTO, *losses):
        raise Failure(
            f"optim.loss {loss} does not go with data.task {task}",
            found=f"optim.loss: {loss}",
            expected=f"one of {', '.join((AUTO, *losses))}",
            fix="leave optim.loss out: auto takes the usual loss of the task",
            code=ExitCode.USAGE,
        )
