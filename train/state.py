"""`TrainState` is what changes during training and a resumed run needs; checkpoints hold it.

No state of a random generator is needed: each use seeds its own from the run's seed and its place in the run (epoch and
sample, or step and micro batch). `run.resume.checkpoint_metadata` adds the config and what a resume compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Final

from torch import nn

from entrypoint import ExitCode, Failure
from train.checkpoint import store
from train.config.schema import Rule
from train.evaluation.results import EvaluationResult
from train.fields import FINITE, check_fields, is_number, whole_number
from train.optim.ema import EMA
from train.parallel.base import Parallel, TensorGroups
from train.tasks import CLASSIFICATION, TASKS


def _is_result(values: Any) -> bool:
    if not isinstance(values, dict):
        return values is None
    lists = [values.get(name) or [] for name in ("recall", "average_precision", "thresholds")]
    named = ("recall", "average_precision", "thresholds", "task")
    scalars = [value for name, value in values.items() if name not in named]
    if not all(isinstance(numbers, list) for numbers in lists) or str(values.get("task", CLASSIFICATION)) not in TASKS:
        return False
    return all(value is None or is_number(value) for value in chain(scalars, *lists))


def _is_window(values: Any) -> bool:
    if not isinstance(values, dict) or not is_number(values.get("since")):
        return values is None
    sums = values.get("sums")
    ranks = sums if isinstance(sums, list) else []
    return (
        bool(ranks)
        and all(isinstance(rank, list) and all(map(is_number, rank)) for rank in ranks)
        and len({len(rank) for rank in ranks}) == 1
    )


# What a training can have written: hashes detect damage, not edited values. Older versions lack some of these.
COUNTER: Final = whole_number(0, 2**62)
RESULT: Final = Rule(holds=_is_result, expected="what an evaluation measured")
STATE_RULES: Final = {
    **dict.fromkeys(("step", "evaluated", "held", "stale", "rollbacks"), COUNTER),
    "best_step": Rule(holds=lambda step: step is None or COUNTER.holds(step), expected="null or the number of a step"),
    "seconds": Rule(
        holds=lambda seconds: FINITE.holds(seconds) and seconds >= 0, expected="a finite number, 0 or more"
    ),
    **dict.fromkeys(("result", "best", "unflipped"), RESULT),
    "window": Rule(holds=_is_window, expected="sums of each rank"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogWindow:
    """The sums since the last log point."""

    sums: list[list[float]]  # of each rank, as `RunningMean.sums`
    since: float  # the training time (seconds) of that log point

    def totals(self) -> list[float]:
        """The sums over all ranks."""
        return [sum(column) for column in zip(*self.sums, strict=True)]

    def sums_of(self, rank: int, world_size: int) -> list[float]:
        """The sums that a rank continues with. In a world of another size rank 0 takes all of them."""
        if len(self.sums) == world_size:
            return self.sums[rank]
        return [total if rank == 0 else 0.0 for total in self.totals()]


@dataclass(slots=True, kw_only=True)
class TrainState:
    """The Trainer changes it; before there is one, `run.resume` restores it from a checkpoint."""

    parallel: Parallel  # owns the network, the optimizer and fp16's scaler
    ema: EMA | None = None  # with train.ema_decay
    step: int = 0  # finished optimizer steps: with the config they determine the next samples and learning rate
    seconds: float = 0.0  # of training, in all starts, without evaluations and saves
    evaluated: int = 0  # the step of the last evaluation
    result: EvaluationResult | None = None  # what the last evaluation measured
    unflipped: EvaluationResult | None = None  # the same without eval.flip, where that is set
    best: EvaluationResult | None = None  # the best evaluation so far, by eval.metric
    best_step: int | None = None
    target_streak: int = 0  # how many evaluations in a row have reached eval.target
    stale_evaluations: int = 0  # how many evaluations in a row were not better than the best one
    rollbacks: int = 0  # how often the run went back to a checkpoint because its loss had jumped
    window: LogWindow | None = None  # the sums since the last log point, when this state was saved

    @property
    def network(self) -> nn.Module:
        """The network without a wrapper."""
        return self.parallel.network

    def snapshot(self) -> tuple[TensorGroups, dict[str, Any]]:
        """The checkpoint's live tensors by group; and the rest, as the part "state" of its state.json has it.

        All ranks call it, and rank 0 writes what it gets.
        """
        groups, values = self.parallel.snapshot(self.ema)
        return groups, {
            "step": self.step,
            "seconds": self.seconds,
            "evaluated": self.evaluated,
            "result": self.result.to_json() if self.result else None,
            "best": self.best.to_json() if self.best else None,
            "best_step": self.best_step,
            "held": self.target_streak,  # the name in files since the first version
            "stale": self.stale_evaluations,
            "rollbacks": self.rollbacks,
            "window": asdict(self.window) if self.window else None,
            **values,
            **({"unflipped": self.unflipped.to_json()} if self.unflipped else {}),
        }

    def restore(self, groups: TensorGroups, values: Mapping[str, Any]) -> None:
        """Load what `snapshot` returned.

        Raises:
            Failure: DATA, if the checkpoint belongs to another model or optimizer.
        """
        try:
            check_fields(values, STATE_RULES, optional=True)
            self.parallel.restore(groups, values, self.ema)
            self.step, self.seconds = int(values["step"]), float(values["seconds"])
            self.evaluated, self.best_step = int(values["evaluated"]), values["best_step"]
            # Checkpoints of the first versions do not have the next four.
            self.target_streak, self.rollbacks = int(values.get("held", 0)), int(values.get("rollbacks", 0))
            self.stale_evaluations = int(values.get("stale", 0))
            self.window = LogWindow(**values["window"]) if values.get("window") else None
            self.result, self.best = _result(values["result"]), _result(values["best"])
            self.unflipped = _result(values.get("unflipped"))
        except (KeyError, ValueError, TypeError, RuntimeError) as error:
            raise Failure(
                "the checkpoint does not fit this model and optimizer",
                found=str(error).splitlines()[0],
                fix=store.OTHER_VERSION_FIX,
                code=ExitCode.DATA,
            ) from error


def _result(values: Mapping[str, Any] | None) -> EvaluationResult | None:
    return EvaluationResult.from_json(values) if values else None
