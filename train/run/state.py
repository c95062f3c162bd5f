"""All that a run needs to go on, in one place: what a checkpoint takes from it, and gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from entrypoint import ExitCode, Failure
from train.checkpoint import format
from train.evaluation.metrics import EvaluationResult
from train.optim.ema import EMA
from train.run import likeness

Tensors = Mapping[str, Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Of a log point that is still to come: each rank's sums, and the training seconds at which they began."""

    sums: list[list[float]]
    since: float

    def of(self, rank: int, world_size: int) -> list[float]:
        """What this rank goes on from. In another world rank 0 has it all."""
        if len(self.sums) == world_size:
            return self.sums[rank]
        return [sum(column) if rank == 0 else 0.0 for column in zip(*self.sums, strict=True)]


@dataclass(slots=True, kw_only=True)
class State:
    """Changed by the loop and by nothing else. Random numbers are keyed, so that no generator's state is here."""

    network: nn.Module
    """Not wrapped in DDP."""
    optimizer: Optimizer
    scaler: GradScaler | None
    step: int = 0
    """Finished optimizer steps; with the config it also says which samples come next, and their learning rate."""
    seconds: float = 0.0
    """Spent in training steps, in all starts."""
    evaluated: int = 0
    """The step of the last evaluation."""
    result: EvaluationResult | None = None
    best: EvaluationResult | None = None
    best_step: int | None = None
    average: EMA | None = None
    """Of the weights, where train.ema_decay asks for one."""
    held: int = 0
    """In how many evaluations in a row eval.target was reached."""
    rollbacks: int = 0
    """How often the run went back to a checkpoint because its loss had jumped."""
    window: Window | None = None
    """What was added up since the last log point, when this was saved."""


def tensors(state: State) -> dict[str, dict[str, Tensor]]:
    """The checkpoint's groups of tensors."""
    moments, _ = format.pack_state(state.optimizer.state_dict())
    average = {"ema": state.average.tensors} if state.average else {}
    return {"model": dict(state.network.state_dict()), "optimizer": moments, **average}


def facts(state: State) -> dict[str, Any]:
    """The checkpoint's numbers."""
    _, shape = format.pack_state(state.optimizer.state_dict())
    return {
        "step": state.step,
        "seconds": state.seconds,
        "evaluated": state.evaluated,
        "result": state.result.to_json() if state.result else None,
        "best": state.best.to_json() if state.best else None,
        "best_step": state.best_step,
        "held": state.held,
        "rollbacks": state.rollbacks,
        "window": asdict(state.window) if state.window else None,
        "optimizer": shape,
        "scaler": state.scaler.state_dict() if state.scaler else None,
    }


def restore(state: State, saved: Tensors, told: Mapping[str, Any]) -> None:
    """Put back what `tensors` and `facts` took out.

    Raises:
        Failure: DATA, where the checkpoint belongs to another model or optimizer.
    """
    try:
        likeness.refuse_odd(told)
        state.network.load_state_dict(dict(saved["model"]))
        settings = likeness.groups(state.optimizer)
        moments = format.unpack_state(saved["optimizer"], told["optimizer"])
        state.optimizer.load_state_dict(_with_kernels_of(state.optimizer, moments))
        likeness.refuse_strange(state.optimizer, settings)
        if state.average:
            state.average.restore(saved["ema"])
        if state.scaler and told["scaler"]:
            state.scaler.load_state_dict(told["scaler"])
        state.step, state.seconds = int(told["step"]), float(told["seconds"])
        state.evaluated, state.best_step = int(told["evaluated"]), told["best_step"]
        state.held, state.rollbacks = int(told.get("held", 0)), int(told.get("rollbacks", 0))
        state.window = Window(**window) if (window := told.get("window")) else None
        state.result, state.best = _result(told["result"]), _result(told["best"])
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        raise Failure(
            "the checkpoint does not fit this model and optimizer",
            found=str(error).splitlines()[0],
            fix="continue with the version that wrote it, or start over with checkpoint.resume=never",
            code=ExitCode.DATA,
        ) from error


def _with_kernels_of(optimizer: Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """Which kernels compute is this start's own matter: a checkpoint may come from another device, or version."""
    for group, own in zip(saved["param_groups"], optimizer.param_groups, strict=True):
        group.update({name: own[name] for name in ("fused", "foreach") if name in own})
    return saved


def _result(told: Mapping[str, Any] | None) -> EvaluationResult | None:
    return EvaluationResult.from_json(told) if told else None
