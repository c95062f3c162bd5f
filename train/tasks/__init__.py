"""A task is what a model learns: classes, several labels, or a number for each image.

What is known of a task without torch is offered here; `train.tasks.registry` opens the class that computes with it.
"""

from train.tasks.table import (
    AUTO,
    CLASSIFICATION,
    MAX_NUMBER,
    MULTI_LABEL,
    REGRESSION,
    TASKS,
    UNSUPPORTED_TASKS,
    TargetScale,
    TaskEntry,
    configured_task,
    parse_number,
    task_fact,
)

__all__ = [
    "AUTO",
    "CLASSIFICATION",
    "MAX_NUMBER",
    "MULTI_LABEL",
    "REGRESSION",
    "TASKS",
    "UNSUPPORTED_TASKS",
    "TargetScale",
    "TaskEntry",
    "configured_task",
    "parse_number",
    "task_fact",
]
