"""A task is what a model learns: classes, several labels, or a number for each image.

What is known of a task without torch is offered here; `train.tasks.registry` opens the class that computes with it.
"""

from train.tasks.table import (
    AUTO,
    CLASSIFICATION,
    MULTI_LABEL,
    REGRESSION,
    TASKS,
    UNSUPPORTED_TASKS,
    TargetScale,
    TaskEntry,
    task_fact,
)

__all__ = [
    "AUTO",
    "CLASSIFICATION",
    "MULTI_LABEL",
    "REGRESSION",
    "TASKS",
    "UNSUPPORTED_TASKS",
    "TargetScale",
    "TaskEntry",
    "task_fact",
]
