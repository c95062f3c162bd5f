"""Early stopping ends a run whose metric has reached its target, or no longer improves.

It also refuses metrics and targets that the data cannot support.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from entrypoint import ExitCode, Failure, pluralize
from train.config.batches import StepCounts, count_total_steps
from train.config.schema import EvalConfig, RunConfig
from train.evaluation import results
from train.evaluation.results import EvaluationResult
from train.metrics import DEFAULT_METRIC, METRICS


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyStop:
    """A reason to end a run before its last step. override: the setting with which the run trains on."""

    description: str
    override: str


def find_early_stops(config: EvalConfig, *, target_streak: int, stale_evaluations: int) -> tuple[EarlyStop, ...]:
    """The reasons for which the run may end before its last step; empty while it trains on.

    Args:
        target_streak: how many evaluations in a row have reached eval.target.
        stale_evaluations: how many evaluations in a row were not better than the best one.
    """
    stops = []
    if config.target is not None and target_streak >= config.patience:
        description = (
            f"{config.metric} reached eval.target {config.target:g} in {pluralize(config.patience, 'evaluation')}"
        )
        stops.append(EarlyStop(description=description, override="eval.target=null"))
    if config.early_stop is not None and stale_evaluations >= config.early_stop:
        description = (
            f"{config.metric} did not improve in {pluralize(stale_evaluations, 'evaluation')} (eval.early_stop)"
        )
        stops.append(EarlyStop(description=description, override="eval.early_stop=null"))
    return tuple(stops)


def count_target_streak(config: EvalConfig, streak: int, result: EvaluationResult) -> int:
    """The number of evaluations in a row that reached the target, including `result`."""
    if config.target is None or not results.reaches_target(config.metric, result, config.target):
        return 0
    return streak + 1


def restore_target_streak(config: EvalConfig, streak: int, last: EvaluationResult | None, target: float | None) -> int:
    """The streak after a resume. If eval.target has changed, only the last evaluation counts.

    streak, last, target: from the checkpoint.
    """
    if last is None or config.target is None or not results.reaches_target(config.metric, last, config.target):
        return 0
    return streak if config.target == target else min(streak, 1)


def refuse_unusable_metric(config: EvalConfig, *, validation_images: int, classes: int) -> None:
    """Refuse a metric that is meaningless for so few classes, and early stopping without validation images.

    Args:
        validation_images: the number of validation images.

    Raises:
        Failure: USAGE.
    """
    for key, value in (("target", config.target), ("early_stop", config.early_stop)):
        if value is not None and validation_images == 0:
            fix = f"set data.val_fraction above 0, give the data validation images, or set eval.{key}=null"
            raise _usage_failure(f"eval.{key} needs validation images", "0 validation images", fix)
    fewest = METRICS[config.metric].min_classes
    if classes < fewest:
        what = f"eval.metric {config.metric} needs more than {fewest - 1} classes"
        raise _usage_failure(what, f"{classes} classes", f"set eval.metric={DEFAULT_METRIC.name}")


def refuse_run_past_end(metadata: Mapping[str, Any], config: RunConfig, counted: StepCounts) -> None:
    """Refuse a run that is past the end of `config`, if its last start was to train longer.

    Most likely a setting of the last start is missing, and the run would be called finished.

    Args:
        metadata: the checkpoint's state.json.
        counted: the steps of `config`.

    Raises:
        Failure: DATA, naming the settings to continue with.
    """
    step, before, current = metadata["state"].get("step"), metadata["config"]["train"], config.train
    saved = {"epochs": before["epochs"], "max_steps": before.get("max_steps")}
    last, per_epoch = count_total_steps(counted.per_epoch, **saved), counted.per_epoch
    if type(step) is not int or not counted.total < step < last or _had_stopped_early(metadata):
        return
    requested = {"epochs": current.epochs, "max_steps": current.max_steps}
    more = [f"train.{key}={'null' if old is None else old}" for key, old in saved.items() if requested[key] != old]
    whose = pluralize(current.epochs, "epoch") if counted.total == current.epochs * per_epoch else "train.max_steps"
    raise Failure(
        "this run is past the end that is asked for",
        found=f"step {step}, epoch {-(-step // per_epoch)}",
        expected=f"at most {counted.total} steps ({whose}); the last start was to do {last}",
        fix=f"add {' '.join(more)} to go on as the last start did; or set another run.name, or checkpoint.resume=never",
        code=ExitCode.DATA,
    )


def _had_stopped_early(metadata: Mapping[str, Any]) -> bool:
    """Whether the run had stopped early, by the settings in the checkpoint."""
    keys = ("metric", "target", "patience", "early_stop")
    saved = {key: metadata["config"]["eval"].get(key, getattr(EvalConfig(), key)) for key in keys}
    streak, stale = int(metadata["state"].get("held", 0)), int(metadata["state"].get("stale", 0))
    return bool(find_early_stops(EvalConfig(**saved), target_streak=streak, stale_evaluations=stale))


def _usage_failure(what: str, value: str, fix: str) -> Failure:
    return Failure(what, found=value, fix=fix, code=ExitCode.USAGE)
