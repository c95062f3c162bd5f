"""Decides the settings that depend on the task: the default of eval.metric, and which keys act on it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Final

from entrypoint import ExitCode, Failure
from train.config.schema import RunConfig
from train.metrics import DEFAULT_METRIC, METRICS, metrics_of
from train.tasks import AUTO, TASKS

# All keys that act on some tasks only.
TASK_KEYS: Final = tuple(sorted(set().union(*(task.keys for task in TASKS.values()))))


def with_task_defaults(config: RunConfig, task: str) -> RunConfig:
    """The config of a run of this task: eval.metric is one of the task's, if it was left at its default.

    Raises:
        Failure: USAGE for a metric of another task, and for a key that does nothing for this one.
    """
    _refuse_unused_keys(config, task)
    _refuse_other_loss(config, task)
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
