"""Early stopping ends a run whose metric has reached the target often enough in a row.

It also refuses metrics and targets that the data cannot support.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from entrypoint import ExitCode, Failure
from train.config.batches import StepCounts, count_total_steps
from train.config.schema import EvalConfig, RunConfig
from train.evaluation import metrics
from train.evaluation.metrics import EvaluationResult

TOP_K: Final = 5


def count_target_streak(wanted: EvalConfig, before: int, result: EvaluationResult) -> int:
    """In how many evaluations in a row the target was reached, once `result` is counted too."""
    if wanted.target is None or not metrics.reaches_target(wanted.metric, result, wanted.target):
        return 0
    return before + 1


def restore_target_streak(wanted: EvalConfig, held: int, last: EvaluationResult | None, target: float | None) -> int:
    """`held` of a checkpoint under `target`. Under another one only the last evaluation is known."""
    good = last is not None and wanted.target is not None and metrics.reaches_target(wanted.metric, last, wanted.target)
    return (held if wanted.target == target else min(held, 1)) if good else 0


def should_stop(wanted: EvalConfig, held: int) -> bool:
    """Whether the run may end before its last step."""
    return wanted.target is not None and held >= wanted.patience


def refuse_unusable_metric(wanted: EvalConfig, *, held_out: int, classes: int) -> None:
    """Refuse a metric that cannot tell anything here, and a target that nothing will be compared with.

    Raises:
        Failure: USAGE.
    """
    if wanted.target is not None and held_out == 0:
        fix = "set data.val_fraction above 0, give the data a held-out side, or set eval.target=null"
        raise _usage_failure("eval.target needs held-out samples", "0 held-out samples", fix)
    if wanted.metric == "top5_accuracy" and classes <= TOP_K:
        fix = f"set eval.metric=accuracy: the right one is always among the best {TOP_K} of {classes}"
        raise _usage_failure(f"eval.metric top5_accuracy needs more than {TOP_K} classes", f"{classes} classes", fix)


def refuse_run_past_end(told: Mapping[str, Any], config: RunConfig, counted: StepCounts) -> None:
    """Refuse to call a run finished that is past the end which `config` asks for, and was to go on when it was saved:
    most likely the setting is missing that the last start had.

    Args:
        told: what the checkpoint says beside its tensors. counted: what `config` asks for.

    Raises:
        Failure: DATA, naming the settings that go on.
    """
    step, before, now = told["state"].get("step"), told["config"]["train"], config.train
    saved = {"epochs": before["epochs"], "max_steps": before.get("max_steps")}
    last, per_epoch = count_total_steps(counted.per_epoch, **saved), counted.per_epoch
    if type(step) is not int or not counted.total < step < last or _had_stopped_early(told):
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


def _had_stopped_early(told: Mapping[str, Any]) -> bool:
    """By the settings it was saved with."""
    target, patience = (told["config"]["eval"].get(key, getattr(EvalConfig(), key)) for key in ("target", "patience"))
    return should_stop(EvalConfig(target=target, patience=patience), int(told["state"].get("held", 0)))


def _usage_failure(what: str, found: str, fix: str) -> Failure:
    return Failure(what, found=found, fix=fix, code=ExitCode.USAGE)
