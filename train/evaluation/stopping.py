"""When a run has reached what it was made for: the metric as good as the target, often enough in a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from entrypoint import ExitCode, Failure
from train.evaluation import scores
from train.evaluation.scores import Result
from train.settings.batches import Steps, total
from train.settings.config import Eval, RunConfig

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


def refuse_past(told: Mapping[str, Any], config: RunConfig, counted: Steps) -> None:
    """Refuse to call a run finished that is past the end which `config` asks for, and was to go on when it was saved:
    most likely the setting is missing that the last start had.

    Args:
        told: what the checkpoint says beside its tensors. counted: what `config` asks for.

    Raises:
        Failure: DATA, naming the settings that go on.
    """
    step, before, now = told["state"].get("step"), told["config"]["train"], config.train
    saved = {"epochs": before["epochs"], "max_steps": before.get("max_steps")}
    last, per_epoch = total(counted.per_epoch, **saved), counted.per_epoch
    if type(step) is not int or not counted.total < step < last or _had_reached(told):
        return
    asked = {"epochs": now.epochs, "max_steps": now.max_steps}
    more = [f"train.{key}={'null' if old is None else old}" for key, old in saved.items() if asked[key] != old]
    epochs = "1 epoch" if now.epochs == 1 else f"{now.epochs} epochs"
    whose = epochs if counted.total == now.epochs * per_epoch else "train.max_steps"
    raise Failure(
        "this run is past the end that is asked for",
        found=f"step {step}, epoch {-(-step // per_epoch)}",
        expected=f"at most {counted.total} steps ({whose}); the last start was to do {last}",
        fix=f"add {' '.join(more)} to go on as the last start did; or set another run.name, or checkpoint.resume=never",
        code=ExitCode.DATA,
    )


def _had_reached(told: Mapping[str, Any]) -> bool:
    """By the settings it was saved with."""
    target, patience = (told["config"]["eval"].get(key, getattr(Eval(), key)) for key in ("target", "patience"))
    return reached(Eval(target=target, patience=patience), int(told["state"].get("held", 0)))


def _unfit(what: str, found: str, fix: str) -> Failure:
    return Failure(what, found=found, fix=fix, code=ExitCode.USAGE)
