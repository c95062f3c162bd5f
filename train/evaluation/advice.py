"""This module says after a poor result what a user may try next, in one line."""

from __future__ import annotations

import math
from typing import Final

from entrypoint import shell_command
from train.config.schema import RunConfig
from train.evaluation.results import WEAK_CLASS_DIFFERENCE, EvaluationResult
from train.tasks import TASKS

# A score that came less far from guessing to a perfect one is poor.
POOR_SHARE: Final = 0.5


def advise(config: RunConfig, result: EvaluationResult, *, num_classes: int, improves: bool) -> str | None:
    """What to try after a poor result; None after another one.

    improves: whether the last evaluation was the best so far.
    """
    if (loss := result.values.get("loss")) is not None and not math.isfinite(loss):
        return "the scores are not finite numbers: a lower optim.lr, or train.clip_grad_norm=1.0"
    task, accuracy = TASKS[result.task], result.value("accuracy")
    score, guess = result.value(task.telling_metric), task.guessed(num_classes)
    if score is None or score >= guess + POOR_SHARE * (1 - guess):
        return None
    is_balanced = (config.optim.class_weights, config.data.sampling) != ("none", "uniform")
    misses_rare = accuracy is not None and accuracy - score > WEAK_CLASS_DIFFERENCE
    ways = {
        "trained weights (docs/fine-tuning.md)": config.model.weights is None,
        "optim.class_weights=balanced or data.sampling=balanced": misses_rare and not is_balanced,
        "more epochs (as below)": improves,
    }
    find_rate = shell_command("train find-lr", same_config=True)
    chosen = [way for way, may_help in ways.items() if may_help] or [f"another optim.lr (`{find_rate}` suggests one)"]
    return f"the result is poor: {'; '.join(chosen)}"
