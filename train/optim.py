"""From the config to an optimizer, and from a step's number to its learning rate."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from entrypoint import ExitCode, Failure
from train.config import Optim

Parameters = Iterable[nn.Parameter]
# Ours set these, so that `optim.args` may not.
OURS: Final = ("params", "lr", "momentum", "weight_decay")


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The learning rate as a pure function of the optimizer step, so that nothing of it needs saving."""

    kind: Literal["cosine", "constant"]
    peak: float
    warmup: int
    total: int

    def __call__(self, step: int) -> float:
        """For the step that comes after `step` finished ones (0: the first): linear warm-up, then the kind's curve.

        The first step already moves, and the last one still does.
        """
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        if self.kind == "constant":
            return self.peak
        done = (step - self.warmup) / max(1, self.total - self.warmup)
        return self.peak * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def schedule(optim: Optim, *, per_epoch: int, total: int) -> Schedule:
    """The run's schedule; warm-up never takes more than the run."""
    warmup = min(round(optim.warmup_epochs * per_epoch), total)
    return Schedule(kind=optim.schedule, peak=optim.lr, warmup=warmup, total=total)  # type: ignore[arg-type]


def _sgd(parameters: Parameters, optim: Optim) -> Optimizer:
    return SGD(parameters, lr=optim.lr, momentum=optim.momentum, weight_decay=optim.weight_decay, **optim.args)


def _adamw(parameters: Parameters, optim: Optim) -> Optimizer:
    return AdamW(parameters, lr=optim.lr, weight_decay=optim.weight_decay, **_tuples(optim.args))


OPTIMIZERS: Final[Mapping[str, tuple[type[Optimizer], Callable[[Parameters, Optim], Optimizer]]]] = {
    "sgd": (SGD, _sgd),
    "adamw": (AdamW, _adamw),
}


def build(optim: Optim, parameters: Parameters) -> Optimizer:
    """The optimizer, with `optim.args` handed on.

    Raises:
        Failure: USAGE for arguments that it does not take.
    """
    kind, make = OPTIMIZERS[optim.name]
    known = [name for name in inspect.signature(kind).parameters if name not in OURS]
    if unknown := [name for name in optim.args if name not in known]:
        raise _bad_arguments(optim, f"unknown: {', '.join(unknown)}", known)
    try:
        return make(parameters, optim)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _bad_arguments(optim, str(error), known) from error


def set_rate(optimizer: Optimizer, rate: float) -> None:
    """Use `rate` from now on, in place where the optimizer keeps it as a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _tuples(args: Mapping[str, Any]) -> dict[str, Any]:
    """YAML has no tuples, and `betas` wants one."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in args.items()}


def _bad_arguments(optim: Optim, found: str, known: list[str]) -> Failure:
    return Failure(
        f"optim.args do not fit {optim.name}",
        found=f"{optim.args}: {found}",
        expected=f"values for: {', '.join(known)}",
        fix="correct optim.args, or leave it out",
        code=ExitCode.USAGE,
    )
