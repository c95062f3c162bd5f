"""`resolve` makes the one config of a start: what the user requested, and what the run uses.

It does not import torch: `train check` resolves most configs without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from train.config.checks import with_task_defaults
from train.config.schema import RunConfig


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


def resolve(config: RunConfig, fitted: RunConfig, task: str) -> ResolvedConfig:
    """Decide what the config leaves to the task and to trained weights.

    fitted: the config as `weights.fit_to_weights` returns it; without weights the same config. task: of the data.

    Raises:
        Failure: USAGE, as `checks.with_task_defaults`.
    """
    requested = with_task_defaults(replace(config, data=fitted.data), task)
    return ResolvedConfig(requested=requested, used=replace(requested, model=fitted.model))
