"""`TrainState` is what changes during training and a resumed run needs; checkpoints hold it.

No state of a random generator is needed: each use seeds its own from the run's seed and its place in the run (epoch and
sample, or step and micro batch). `run.resume.checkpoint_metadata` adds the config and what a resume compares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Final

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from entrypoint import ExitCode, Failure
from train.checkpoint import format, store
from train.evaluation.results import EvaluationResult
from train.optim.ema import EMA
from train.tasks import CLASSIFICATION, TASKS

TensorGroups = Mapping[str, Mapping[str, Tensor]]
COUNTERS: Final = ("step", "evaluated", "held", "stale", "rollbacks")
MAX_COUNTER: Final = 1 << 62


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

    network: nn.Module  # without its DDP wrapper
    optimizer: Optimizer
    scaler: GradScaler | None
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

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """The checkpoint's tensors, by group."""
        moments, _ = format.pack_state(self.optimizer.state_dict())
        ema = {"ema": self.ema.tensors} if self.ema else {}
        return {"model": dict(self.network.state_dict()), "optimizer": moments, **ema}

    def to_json(self) -> dict[str, Any]:
        """Everything else, as JSON values: the part "state" of the checkpoint's state.json."""
        _, optimizer = format.pack_state(self.optimizer.state_dict())
        return {
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
            "optimizer": optimizer,
            "scaler": self.scaler.state_dict() if self.scaler else None,
            **({"unflipped": self.unflipped.to_json()} if self.unflipped else {}),
        }

    def restore(self, tensors: TensorGroups, values: Mapping[str, Any]) -> None:
        """Load what `tensors` and `to_json` returned.

        Raises:
            Failure: DATA, if the checkpoint belongs to another model or optimizer.
        """
        try:
            check_values(values)
            self.network.load_state_dict(dict(tensors["model"]))
            settings = [dict(group) for group in self.optimizer.param_groups]
            saved = format.unpack_state(tensors["optimizer"], values["optimizer"])
            self.optimizer.load_state_dict(_keep_kernel_choice(self.optimizer, saved))
            check_optimizer(self.optimizer, settings)
            if self.ema:
                self.ema.restore(tensors["ema"])
            if self.scaler and values["scaler"]:
                self.scaler.load_state_dict(values["scaler"])
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


def _keep_kernel_choice(optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """The optimizer's kernels (fused, foreach) suit this start's device; the checkpoint may come from another.

    Raises:
        ValueError: the parameters are in other groups, in which a version has put them that decayed others.
    """
    sizes, own_sizes = (
        [len(group["params"]) for group in each["param_groups"]] for each in (saved, optimizer.state_dict())
    )
    if sizes != own_sizes:
        raise ValueError(f"its optimizer has groups of {sizes} parameters, and here these are {own_sizes}")
    for group, own_group in zip(saved["param_groups"], optimizer.param_groups, strict=True):
        group.update({name: own_group[name] for name in ("fused", "foreach") if name in own_group})
    return saved


def _result(values: Mapping[str, Any] | None) -> EvaluationResult | None:
    return EvaluationResult.from_json(values) if values else None


# Hashes detect damage, not edited values: so the values are checked too.


def check_values(values: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the first value that training could not have written."""
    checks = [
        *((name, values.get(name, 0), _is_counter) for name in COUNTERS),
        ("best_step", values["best_step"] or 0, _is_counter),
        ("seconds", values["seconds"], _is_duration),
        ("result", values["result"], _is_result),
        ("best", values["best"], _is_result),
        ("unflipped", values.get("unflipped"), _is_result),
        ("window", values.get("window"), _is_window),
    ]
    for name, value, is_valid in checks:
        _require(is_valid(value), name, value)


def check_optimizer(optimizer: Optimizer, settings: Sequence[Mapping[str, Any]]) -> None:
    """Raises ValueError if the optimizer got settings or moments that it cannot step with.

    Only its author knows what a class outside torch.optim keeps: it is not checked.

    settings: of each parameter group, before the checkpoint was loaded.
    """
    if not type(optimizer).__module__.startswith("torch.optim"):
        return
    for before, after in zip(settings, optimizer.param_groups, strict=True):
        for name in before.keys() - {"params"}:
            valid = name in after and _is_alike(before[name], after[name])
            _require(valid, f"optimizer {name}", after.get(name))
    for moments in optimizer.state.values():
        _require(isinstance(moments, dict), "optimizer state", moments)
        for name, value in moments.items():
            _require(value is None or isinstance(value, Tensor) or _is_number(value), f"optimizer {name}", value)


def _require(condition: bool, name: str, value: Any) -> None:
    if not condition:
        raise ValueError(f"{name} is {value!r:.60}")


def _is_alike(before: Any, after: Any) -> bool:
    """Whether a setting has a type that may take the other's place. torch's versions write None or a bool for some."""
    if isinstance(before, tuple):
        return isinstance(after, tuple) and len(after) == len(before) and all(map(_is_alike, before, after))
    if _is_number(before):
        return _is_number(after) or isinstance(after, Tensor)
    if isinstance(before, str | list | dict):
        return isinstance(after, type(before))
    return not isinstance(after, str | list | dict)


def _is_counter(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_COUNTER


def _is_duration(value: Any) -> bool:
    return _is_number(value) and 0 <= value < math.inf


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_result(values: Any) -> bool:
    if not isinstance(values, dict):
        return values is None
    lists = [values.get(name) or [] for name in ("recall", "average_precision", "thresholds")]
    named = ("recall", "average_precision", "thresholds", "task")
    scalars = [value for name, value in values.items() if name not in named]
    if not all(isinstance(numbers, list) for numbers in lists) or str(values.get("task", CLASSIFICATION)) not in TASKS:
        return False
    return all(value is None or _is_number(value) for value in chain(scalars, *lists))


def _is_window(values: Any) -> bool:
    if not isinstance(values, dict) or not _is_number(values.get("since")):
        return values is None
    sums = values.get("sums")
    ranks = sums if isinstance(sums, list) else []
    return (
        bool(ranks)
        and all(isinstance(rank, list) and all(map(_is_number, rank)) for rank in ranks)
        and len({len(rank) for rank in ranks}) == 1
    )
