"""`resolve` makes the one config of a start: what the user requested, and what the run uses.

It does not import torch: `train check` resolves most configs without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from entrypoint import ExitCode, Failure, shell_command
from train.config.optimizers import OPTIMIZERS, usual_learning_rate
from train.config.schema import KEYS, OptimConfig, RunConfig, is_factory
from train.metrics import DEFAULT_METRIC, METRICS, metrics_of
from train.tasks import AUTO, CLASSIFICATION, TASKS

# All keys that act on some tasks only.
TASK_KEYS: Final = tuple(sorted(set().union(*(task.keys for task in TASKS.values()))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedConfig:
    """What the user requested, and what the run uses.

    Later only the reader of the test split gets something else: no cache, and the batch size of a compiled network.

    The run records `requested`, and compares it when it resumes. Whatever must hold for the whole run is decided in it
    (learning rate, metric, preprocessing), so that no later rule changes a run that has begun. `used` also holds what
    each start decides again, because it follows from files: the stem of a network that gets trained weights.
    """

    requested: RunConfig
    used: RunConfig


def refuse_key_of_other_task(config: RunConfig, key: str, task: str) -> None:
    """Raises Failure (USAGE) if the key is set and does nothing for this task of the data."""
    value = attrgetter(key)(config)
    if key not in TASKS[task].keys and value != KEYS[key].default:
        others = " or ".join(other.name for other in TASKS.values() if key in other.keys)
        raise Failure(
            f"{key} does not go with data.task {task}",
            found=f"{key}: {value}",
            fix=f"leave {key} out: it acts on {others}",
            code=ExitCode.USAGE,
        )


def resolve(config: RunConfig, fitted: RunConfig, task: str) -> ResolvedConfig:
    """Decide what the config leaves to the task and to trained weights.

    fitted: the config as `weights.fit_to_weights` returns it; without weights the same config. task: of the data.

    Raises:
        Failure: USAGE for a metric or a loss of another task, for a key that does nothing for this one, and as
            `resolve_learning_rate`.
    """
    entry, loss, metric = TASKS[task], config.optim.loss, config.eval.metric
    for key in TASK_KEYS:
        refuse_key_of_other_task(config, key, task)
    if loss not in (AUTO, *entry.losses) and not is_factory(loss):
        raise Failure(
            f"optim.loss {loss} does not go with data.task {task}",
            found=f"optim.loss: {loss}",
            expected=f"one of {', '.join((AUTO, *entry.losses))}",
            fix="leave optim.loss out: auto takes the usual loss of the task",
            code=ExitCode.USAGE,
        )
    if task not in METRICS[metric].tasks:
        if metric != DEFAULT_METRIC.name:
            raise Failure(
                f"eval.metric {metric} does not go with data.task {task}",
                found=f"eval.metric: {metric}",
                expected=f"one of {', '.join(metrics_of(task))}",
                fix=f"set eval.metric={entry.default_metric}, or leave it out",
                code=ExitCode.USAGE,
            )
        metric = entry.default_metric
    requested = replace(
        config,
        data=fitted.data,
        optim=resolve_learning_rate(config, task),
        eval=replace(config.eval, metric=metric),
    )
    return ResolvedConfig(requested=requested, used=replace(requested, model=fitted.model))


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
        is_regression=not TASKS[task].has_classes,
    )
    if rate is None:
        raise Failure(
            f"optim.lr auto has no rate for optim.name {optim.name}",
            expected=f"one of {', '.join(name for name, entry in OPTIMIZERS.items() if entry.learning_rate)}",
            fix="set optim.lr to a number: earlier versions took optim.lr=0.1, and from there "
            f"`{shell_command('train find-lr', same_config=True)} optim.lr=0.1` suggests one",
            code=ExitCode.USAGE,
        )
    return replace(optim, lr=rate, lr_scaling="none")
