"""Computes the learning rate of a step.

Schedules are pure functions of the step, so a checkpoint does not store their state. This module
does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from train.config import checks
from train.config.batches import StepCounts
from train.config.optimizers import (
    AUTO_BATCH_SIZE,
    FINE_TUNING_SHARE,
    OPTIMIZERS,
    scale_learning_rate,
    usual_learning_rate,
)
from train.config.schema import FRACTION, OptimConfig, Rule, RunConfig, is_factory
from train.tasks import TASKS

# The arguments of each schedule (optim.schedule_args) and their defaults. start and end are shares of the
# peak learning rate.
DEFAULT_ARGUMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "constant": {},
    "cosine": {"end": 0.0},
    "linear": {"end": 0.0},
    "step": {"at_epochs": None, "factor": 0.1},
    "one_cycle": {"start": 0.04, "end": 4.0e-6},  # torch's defaults
}
DEFAULT_DROP_FRACTIONS: Final = (0.5, 0.75)  # of the run: where `step` falls without at_epochs


def _are_epochs(value: Any) -> bool:
    numbers = value if isinstance(value, list) and value else [None]
    return all(
        isinstance(number, int | float) and not isinstance(number, bool) and 0 < number <= 1e6 for number in numbers
    )


EPOCHS_RULE: Final = Rule(holds=_are_epochs, expected="a list of epochs, each more than 0, up to 1000000")
FACTOR_RULE: Final = Rule(holds=lambda value: 0 < value <= 1, expected="more than 0, up to 1")
ARGUMENT_RULES: Final = {"end": FRACTION, "start": FRACTION, "factor": FACTOR_RULE, "at_epochs": EPOCHS_RULE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The learning rate as a function of the optimizer step.

    name: as in optim.schedule. peak: the highest learning rate. warmup, total: in steps. falls: the
    steps at which the schedule `step` multiplies by args["factor"].
    """

    name: str
    peak: float
    warmup: int
    total: int
    args: Mapping[str, Any]
    falls: tuple[int, ...] = ()

    def __call__(self, step: int) -> float:
        """The learning rate after `step` finished steps: first the warm-up, then the schedule's curve.

        The curve reaches its end one step after the last, so the last step's rate is above 0 even if the
        end is 0. Only one_cycle reaches its end in the last step.
        """
        return self.peak * CURVES[self.name](self, step)

    def done(self, step: int) -> float:
        """The finished share of the steps after the warm-up, in [0, 1]."""
        return min((step - self.warmup) / max(1, self.total - self.warmup), 1.0)


def build_schedule(optim: OptimConfig, counted: StepCounts, global_batch_size: int) -> Schedule:
    """Build the schedule of a run. The warm-up is never longer than the run.

    Raises:
        Failure: USAGE for schedule_args that the schedule does not take.
    """
    args = schedule_arguments(optim)
    epochs = args.get("at_epochs")
    total, per_epoch = counted.total, counted.per_epoch
    falls = (
        [share * total for share in DEFAULT_DROP_FRACTIONS]
        if epochs is None
        else [epoch * per_epoch for epoch in epochs]
    )
    return Schedule(
        name=optim.schedule,
        peak=peak_learning_rate(optim, global_batch_size),
        warmup=min(round(optim.warmup_epochs * per_epoch), total),
        total=total,
        args=args,
        falls=tuple(round(fall) for fall in falls),
    )


def peak_learning_rate(optim: OptimConfig, global_batch_size: int) -> float:
    """The highest learning rate: `lr`, scaled from base_batch_size to the global batch by lr_scaling."""
    assert optim.lr != "auto"  # `resolve` has replaced it
    return scale_learning_rate(optim.lr, optim.lr_scaling, global_batch_size / optim.base_batch_size)


def fine_tuning_warnings(config: RunConfig) -> tuple[str, ...]:
    """A warning if the learning rate for random weights meets trained ones, or if random weights are frozen."""
    optim, entry = config.optim, OPTIMIZERS.get(config.optim.name)
    warnings = []
    if config.model.weights and optim.lr != "auto" and entry and entry.learning_rate:
        rate = entry.learning_rate * FINE_TUNING_SHARE
        if optim.lr >= entry.learning_rate:
            warnings.append(
                f"optim.lr: {optim.lr:g} is a learning rate for random weights: it may destroy those of model.weights "
                f"in the first steps. fix: optim.lr=auto, which takes a tenth ({rate:g} for a global batch of "
                f"{AUTO_BATCH_SIZE}), or a smaller number"
            )
    if config.model.freeze != "none" and not config.model.weights and not is_factory(config.model.name):
        warnings.append(
            f"model.freeze: {config.model.freeze} freezes random weights. fix: set model.weights, or leave it out"
        )
    return tuple(warnings)


def regression_warnings(config: RunConfig, task: str) -> tuple[str, ...]:
    """A warning if numbers are to be predicted with a learning rate of SGD for classes, above that of auto."""
    optim, batch, usual = config.optim, config.train.global_batch_size, OPTIMIZERS["sgd"].learning_rate
    auto = usual_learning_rate("sgd", "none", batch, is_fine_tuning=False, is_regression=True)
    if TASKS[task].has_classes or OPTIMIZERS.get(optim.name) is not OPTIMIZERS["sgd"] or usual is None or auto is None:
        return ()
    peak = peak_learning_rate(optim, batch)
    if peak < usual or peak <= auto:
        return ()
    return (
        f"optim.lr: {optim.lr:g} is a learning rate for classes; on numbers a training often diverges with it. "
        f"fix: optim.lr=auto, which takes {auto:g}",
    )


def schedule_arguments(optim: OptimConfig) -> dict[str, Any]:
    """schedule_args, with defaults for missing ones.

    Raises:
        Failure: USAGE, naming the argument.
    """
    defaults, refuse = DEFAULT_ARGUMENTS[optim.schedule], partial(checks.bad_arguments_failure, "optim.schedule_args")
    for name, value in optim.schedule_args.items():
        if name not in defaults:
            expected = f"values for: {', '.join(defaults)}" if defaults else "nothing"
            raise refuse(optim.schedule, f"unknown: {name}", expected, unknown=name, settable=[*defaults])
        rule = ARGUMENT_RULES[name]
        if not _rule_holds(rule, value):
            raise refuse(optim.schedule, f"{name}: {value}", f"{name}: {rule.expected}")
    return {**defaults, **optim.schedule_args}


def describe_schedule(schedule: Schedule, *, is_auto: bool = False) -> str:
    """The schedule in words. is_auto: whether optim.lr auto has chosen its peak."""
    auto = " (optim.lr: auto)" if is_auto else ""
    before = f" after {schedule.warmup} step{'' if schedule.warmup == 1 else 's'} of warmup" if schedule.warmup else ""
    return f"{schedule.peak:g}{auto}{before}, then {_describe_curve(schedule)}"


def _describe_curve(schedule: Schedule) -> str:
    end = schedule.peak * schedule.args.get("end", 0)
    if schedule.name == "constant":
        return "constant"
    if schedule.name == "step":
        return f"times {schedule.args['factor']:g} after step {', '.join(map(str, schedule.falls))}"
    return f"{'linear' if schedule.name == 'linear' else 'cosine'} to {end:g}"


def _warmup_factor(schedule: Schedule, step: int) -> float | None:
    return (step + 1) / schedule.warmup if step < schedule.warmup else None


def _constant(schedule: Schedule, step: int) -> float:
    return _warmup_factor(schedule, step) or 1.0


def _cosine(schedule: Schedule, step: int) -> float:
    end: float = schedule.args["end"]
    return _warmup_factor(schedule, step) or end + (1 - end) * 0.5 * (1 + math.cos(math.pi * schedule.done(step)))


def _linear(schedule: Schedule, step: int) -> float:
    end: float = schedule.args["end"]
    return _warmup_factor(schedule, step) or 1 - (1 - end) * schedule.done(step)


def _step_decay(schedule: Schedule, step: int) -> float:
    factor: float = schedule.args["factor"]
    return _warmup_factor(schedule, step) or factor ** sum(step >= fall for fall in schedule.falls)


def _one_cycle(schedule: Schedule, step: int) -> float:
    """Rises from `start` and falls to `end`, each as half a cosine.

    Smith, Topin: Super-convergence, 2018. As in torch's OneCycleLR, the last step of the warm-up has
    the peak, and the last step of the run has `end`.
    """
    start, end = schedule.args["start"], schedule.args["end"]
    top, last = schedule.warmup - 1, schedule.total - 1
    if last == 0:  # a run of one step has the peak, not `end`
        return 1.0
    if step < top:
        return _cosine_interpolate(start, 1.0, step / top)
    return _cosine_interpolate(1.0, end, (step - top) / max(1, last - top))


def _cosine_interpolate(first: float, second: float, done: float) -> float:
    return second + (first - second) * 0.5 * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0)))


CURVES: Final[Mapping[str, Callable[[Schedule, int], float]]] = {
    "constant": _constant,
    "cosine": _cosine,
    "linear": _linear,
    "step": _step_decay,
    "one_cycle": _one_cycle,
}


def _rule_holds(rule: Rule, value: Any) -> bool:
    try:
        return not isinstance(value, bool) and rule.holds(value)
    except TypeError:
        return False
