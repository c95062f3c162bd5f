"""This module says after a poor result what a user may try next, in one line."""

from __future__ import annotations

import math
from typing import Final

from entrypoint import shell_command
from train.config.schema import RunConfig
from train.evaluation.results import WEAK_CLASS_DIFFERENCE, EvaluationResult
from train.tasks import AUTO, MULTI_LABEL, TASKS

# A score that came less far from guessing to a perfect one is poor.
POOR_SHARE: Final = 0.5
# A loss so many times that of guessing comes of steps that are too large, not of a model that has learned too little.
DIVERGED_LOSS: Final = 10
# Where macro F1 is so much lower than the mean average precision, the threshold gives too few labels, or too many.
THRESHOLD_LOSS: Final = 0.2


def advise(
    config: RunConfig, result: EvaluationResult, *, num_classes: int, improves: bool, last: EvaluationResult
) -> str | None:
    """What to try after a poor result; None after another one.

    result: the best. improves: whether the last evaluation was the best so far.
    """
    find_rate = shell_command("train find-lr", same_config=True)
    if (loss := result.values.get("loss")) is not None and not math.isfinite(loss):
        return "the scores are not finite numbers: a lower optim.lr, or train.clip_grad_norm=1.0"
    task, accuracy = TASKS[result.task], result.value("accuracy")
    # Cross-entropy of guessing; at most 1 per label, and of numbers in units of their standard deviation.
    guessed_loss, last_loss = max(1.0, math.log(num_classes)), last.value("loss")
    if last_loss is not None and last_loss > DIVERGED_LOSS * guessed_loss:
        rate = "a lower one"
        if config.optim.lr != AUTO:
            rate += f" than {config.optim.lr:g}, or auto, which would choose another"
        what = f"the last loss, {last_loss:,.4g}, is far above that of guessing"
        return f"{what}: optim.lr: {rate} (`{find_rate}` suggests one)"
    score, guess = result.value(task.telling_metric), task.guessed(num_classes)
    f1 = result.value("macro_f1")
    if score is None:
        return None
    if task.name == MULTI_LABEL and config.eval.threshold != AUTO and f1 is not None and f1 < score - THRESHOLD_LOSS:
        return "the labels are ranked better than the threshold divides them: eval.threshold=auto, in a new run"
    if score >= guess + POOR_SHARE * (1 - guess):
        return None
    is_balanced = (config.optim.class_weights, config.data.sampling) != ("none", "uniform")
    misses_rare = accuracy is not None and accuracy - score > WEAK_CLASS_DIFFERENCE
    ways = {
        "trained weights (docs/fine-tuning.md)": config.model.weights is None,
        "optim.class_weights=balanced or data.sampling=balanced": misses_rare and not is_balanced,
        "more epochs (as below)": improves,
    }
    chosen = [way for way, may_help in ways.items() if may_help] or [f"another optim.lr (`{find_rate}` suggests one)"]
    return f"the result is poor: {'; '.join(chosen)}"
