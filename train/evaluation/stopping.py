"""When a run has reached what it was made for: the metric as good as the target, often enough in a row."""

from __future__ import annotations

from train.evaluation import scores
from train.evaluation.scores import Result
from train.settings.config import Eval


def held(wanted: Eval, before: int, result: Result) -> int:
    """In how many evaluations in a row the target was reached, once `result` is counted too."""
    if wanted.target is None or not scores.reached(wanted.metric, result, wanted.target):
        return 0
    return before + 1


def still_held(wanted: Eval, held: int, last: Result | None) -> int:
    """`held` of a checkpoint, under a target that may have been changed since."""
    good = last is not None and wanted.target is not None and scores.reached(wanted.metric, last, wanted.target)
    return held if good else 0


def reached(wanted: Eval, held: int) -> bool:
    """Whether the run may end before its last step."""
    return wanted.target is not None and held >= wanted.patience
