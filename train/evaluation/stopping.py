"""When a run has reached what it was made for: the metric as good as the target, often enough in a row."""

from __future__ import annotations

from typing import Final

from entrypoint import ExitCode, Failure
from train.evaluation import scores
from train.evaluation.scores import Result
from train.settings.config import Eval

FIVE: Final = 5


def held(wanted: Eval, before: int, result: Result) -> int:
    """In how many evaluations in a row the target was reached, once `result` is counted too."""
    if wanted.target is None or not scores.reached(wanted.metric, result, wanted.target):
        return 0
    return before + 1


def still_held(wanted: Eval, held: int, last: Result | None, target: float | None) -> int:
    """`held` of a checkpoint under `target`. Under another one only the last evaluation is known."""
    good = last is not None and wanted.target is not None and scores.reached(wanted.metric, last, wanted.target)
    return (held if wanted.target == target else min(held, 1)) if good else 0


def reached(wanted: Eval, held: int) -> bool:
    """Whether the run may end before its last step."""
    return wanted.target is not None and held >= wanted.patience


def refuse_unmeasurable(wanted: Eval, *, held_out: int, classes: int) -> None:
    """Refuse a metric that cannot tell anything here, and a target that nothing will be compared with.

    Raises:
        Failure: USAGE.
    """
    if wanted.target is not None and held_out == 0:
        fix = "set data.val_fraction above 0, give the data a held-out side, or set eval.target=null"
        raise _unfit("eval.target needs held-out samples", "0 held-out samples", fix)
    if wanted.metric == "top5_accuracy" and classes <= FIVE:
        fix = f"set eval.metric=accuracy: the right one is always among the best {FIVE} of {classes}"
        raise _unfit(f"eval.metric top5_accuracy needs more than {FIVE} classes", f"{classes} classes", fix)


def _unfit(what: str, found: str, fix: str) -> Failure:
    return Failure(what, found=found, fix=fix, code=ExitCode.USAGE)
