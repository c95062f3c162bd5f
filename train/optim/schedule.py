"""Computes the learning rate of a step.

Schedules are pure functions of the step, so a checkpoint holds nothing of them. This module does
not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from entrypoint import ExitCode, Failure
from train.config.batches import StepCounts
from train.config.schema import FRACTION, OptimConfig, Rule

# What each kind takes in optim.schedule_args, and what it is otherwise. Shares are of the highest learning rate.
DEFAULT_ARGUMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "constant": {},
    "cosine": {"end": 0.0},
    "linear": {"end": 0.0},
    "step": {"at_epochs": None, "factor": 0.1},
    "one_cycle": {"start": 0.04, "end": 4.0e-6},  # as torch has them
}
DEFAULT_DROP_FRACTIONS: Final = (0.5, 0.75)  # of the run: where `step` falls, unless told


def _are_epochs(value: Any) -> bool:
    numbers = value if isinstance(value, list) and value else [None]
    return all(isinstance(one, int | float) and not isinstance(one, bool) and 0 < one <= 1e6 for one in numbers)


EPOCHS_RULE: Final = Rule(holds=_are_epochs, expected="a list of epochs, each more than 0, up to 1000000")
FACTOR_RULE: Final = Rule(holds=lambda value: 0 < value <= 1, expected="more than 0, up to 1")
ARGUMENT_RULES: Final = {"end": FRACTION, "start": FRACTION, "factor": FACTOR_RULE, "at_epochs": EPOCHS_RULE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The learning rate as a function of the optimizer step. `falls`: steps at which `step` multiplies by factor."""

    kind: str
    peak: float
    warmup: int
    total: int
    args: Mapping[str, Any]
    falls: tuple[int, ...] = ()

    def __call__(self, step: int) -> float:
        """For the step that comes after `step` finished ones (0: the first): the warm-up, then the kind's curve.

        The first step already moves, and the last one still does, unless the curve ends at a share above 0.
        """
        return self.peak * CURVES[self.kind](self, step)

    def done(self, step: int) -> float:
        """The share of the steps after the warm-up that come before this one, in [0, 1]."""
        return min((step - self.warmup) / max(1, self.total - self.warmup), 1.0)


def build_schedule(optim: OptimConfig, counted: StepCounts, global_batch_size: int) -> Schedule:
    """The run's schedule; warm-up never takes more than the run.

    Raises:
        Failure: USAGE for schedule_args that the kind does not take.
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
        kind=optim.schedule,
        peak=peak_learning_rate(optim, global_batch_size),
        warmup=min(round(optim.warmup_epochs * per_epoch), total),
        total=total,
        args=args,
        falls=tuple(round(fall) for fall in falls),
    )


def peak_learning_rate(optim: OptimConfig, global_batch_size: int) -> float:
    """The highest learning rate: `lr` is meant for base_batch_size where lr_scaling says so.

    linear: Goyal et al., Accurate, large minibatch SGD, 2017. sqrt: Krizhevsky, One weird trick, 2014.
    """
    times = global_batch_size / optim.base_batch_size
    return optim.lr * {"none": 1.0, "linear": times, "sqrt": math.sqrt(times)}[optim.lr_scaling]


def schedule_arguments(optim: OptimConfig) -> dict[str, Any]:
    """schedule_args with what they leave out.

    Raises:
        Failure: USAGE, naming the argument.
    """
    known = DEFAULT_ARGUMENTS[optim.schedule]
    for name, value in optim.schedule_args.items():
        if name not in known:
            raise _bad_arguments_failure(
                optim, f"unknown: {name}", f"values for: {', '.join(known)}" if known else "nothing"
            )
        rule = ARGUMENT_RULES[name]
        if not _rule_holds(rule, value):
            raise _bad_arguments_failure(optim, f"{name}: {value}", f"{name}: {rule.expected}")
    return {**known, **optim.schedule_args}


def describe_schedule(made: Schedule) -> str:
    """The schedule in words."""
    before = f" after {made.warmup} step{'' if made.warmup == 1 else 's'} of warmup" if made.warmup else ""
    return f"{made.peak:g}{before}, then {_describe_curve(made)}"


def _describe_curve(made: Schedule) -> str:
    end = made.peak * made.args.get("end", 0)
    if made.kind == "constant":
        return "constant"
    if made.kind == "step":
        return f"times {made.args['factor']:g} after step {', '.join(map(str, made.falls))}"
    return f"{'linear' if made.kind == 'linear' else 'cosine'} to {end:g}"


def _warmup_factor(made: Schedule, step: int) -> float | None:
    return (step + 1) / made.warmup if step < made.warmup else None


def _constant(made: Schedule, step: int) -> float:
    return _warmup_factor(made, step) or 1.0


def _cosine(made: Schedule, step: int) -> float:
    end: float = made.args["end"]
    return _warmup_factor(made, step) or end + (1 - end) * 0.5 * (1 + math.cos(math.pi * made.done(step)))


def _linear(made: Schedule, step: int) -> float:
    end: float = made.args["end"]
    return _warmup_factor(made, step) or 1 - (1 - end) * made.done(step)


def _step_decay(made: Schedule, step: int) -> float:
    factor: float = made.args["factor"]
    return _warmup_factor(made, step) or factor ** sum(step >= fall for fall in made.falls)


def _one_cycle(made: Schedule, step: int) -> float:
    """Up from `start` and down to `end`, both as half a cosine (Smith, Topin: Super-convergence, 2018).

    The last step of the warm-up is the highest, and the last step of all has `end`, as torch's OneCycleLR counts.
    """
    start, end = made.args["start"], made.args["end"]
    top, last = made.warmup - 1, made.total - 1
    if last == 0:  # the only step is the highest, not the last
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


def _bad_arguments_failure(optim: OptimConfig, found: str, expected: str) -> Failure:
    return Failure(
        f"optim.schedule_args do not fit {optim.schedule}",
        found=found,
        expected=expected,
        fix="correct optim.schedule_args, or leave it out",
        code=ExitCode.USAGE,
    )
