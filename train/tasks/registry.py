"""`open_task` makes the task of a run's data, of an evaluation, or of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from train.config.schema import OptimConfig
from train.tasks.base import DEFAULT_OPTIM, Task
from train.tasks.classification import Classification
from train.tasks.multi_label import MultiLabel
from train.tasks.regression import Regression
from train.tasks.table import TargetScale

TASK_CLASSES: Final[Mapping[str, type[Task]]] = {task.name: task for task in (Classification, MultiLabel, Regression)}


def open_task(
    name: str, classes: tuple[str, ...], target: TargetScale | None, optim: OptimConfig = DEFAULT_OPTIM
) -> Task:
    """The task of this name. classes: the names of the model's outputs. target: of numbers, their scale.

    optim: of the training, for whoever computes its loss or its metrics.
    """
    return TASK_CLASSES[name](classes=classes, target=target, optim=optim)
