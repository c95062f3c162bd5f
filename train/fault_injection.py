"""FAULT=site:rank:step:action makes a rank fail on purpose, so that tests show what a run survives.

It is off unless the variable is set.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from entrypoint import ExitCode, Failure

if TYPE_CHECKING:
    from torch import Tensor, nn

FAULT_VARIABLE: Final = "FAULT"
FIRST_ATTEMPT_SUFFIX: Final = ":first"
FOREVER_S: Final = 3600.0
FLIPPED_BIT: Final = 6  # of the mantissa: too small a change for the loss to show
LOSS_FACTORS: Final[Mapping[str, float]] = {"nan": float("nan"), "x1e3": 1e3}
# Where a fault can happen; docs/evidence/reliability.md explains each site.
SITES: Final = ("start", "data", "fwd", "bwd", "step", "loss", "param", "eval", "save")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: at `site` of optimizer step `step` (counted from 0) on `rank`; None means any."""

    site: str
    rank: int | None
    step: int | None
    action: str


@dataclass(slots=True)
class FaultInjector:
    """The faults of this rank. Each happens once per process. variable: the value of FAULT, for all ranks."""

    waiting: list[Fault] = field(default_factory=list)
    variable: str = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """A note for the start of a run, so that a forgotten variable is seen."""
        return (
            (f"{FAULT_VARIABLE}={self.variable}: this start is broken on purpose; unset it to train",)
            if self.variable
            else ()
        )

    def due(self, site: str, step: int) -> str | None:
        """Remove and return the action for this site and step, if there is one."""
        for fault in self.waiting:
            if fault.site == site and fault.step in (None, step):
                self.waiting.remove(fault)
                return fault.action
        return None

    def strike(self, site: str, step: int) -> None:
        """Run the action for this site and step, if there is one."""
        if self.waiting and (action := self.due(site, step)):
            ACTIONS[action]()

    def corrupt_loss(self, step: int, loss: Tensor) -> Tensor:
        """Return the loss of a micro batch, wrong if a fault says so."""
        action = self.due("loss", step) if self.waiting else None
        return loss if action is None else loss * LOSS_FACTORS[action]

    def flip_parameter_bit(self, step: int, network: nn.Module) -> None:
        """Flip one bit of the first parameter, if a fault says so."""
        if self.waiting and self.due("param", step) is not None:
            import torch  # not at the top: the parent process checks FAULT without torch

            integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}
            parameter = next(network.parameters()).data
            element = parameter[(0,) * parameter.dim()]
            element.view(integers[element.element_size()]).bitwise_xor_(1 << FLIPPED_BIT)


def parse_faults(text: str | None, rank: int, attempt: str = "0") -> FaultInjector:
    """The faults of `rank` in FAULT, which holds one or several, separated by commas.

    attempt: how often the run was restarted in place. A fault that ends with `:first` happens only in the first
    attempt.

    Raises:
        Failure: USAGE.
    """
    parts = [
        part
        for part in (text or "").split(",")
        if part and not (attempt != "0" and part.endswith(FIRST_ATTEMPT_SUFFIX))
    ]
    faults = [_parse_fault(part.removesuffix(FIRST_ATTEMPT_SUFFIX)) for part in parts]
    return FaultInjector([fault for fault in faults if fault.rank in (None, rank)], variable=text or "")


def _parse_fault(text: str) -> Fault:
    site, rank, step, action = (*text.split(":"), "", "", "")[:4]
    well_formed = text.count(":") == 3 and all(
        part == "*" or (part.isdecimal() and len(part) < 10) for part in (rank, step)
    )
    if not well_formed or site not in SITES or action not in VALUE_ACTIONS.get(site, ACTIONS):
        raise Failure(
            f"{FAULT_VARIABLE} names no fault",
            found=f"{FAULT_VARIABLE}={text}",
            expected=f"site:rank:step:action; sites {', '.join(SITES)}; actions {', '.join(ACTIONS)}; "
            + "; ".join(f"at {site} {', '.join(values)}" for site, values in VALUE_ACTIONS.items()),
            fix=f"unset {FAULT_VARIABLE}: only tests of this project use it",
            code=ExitCode.USAGE,
        )
    return Fault(site=site, rank=_parse_number(rank), step=_parse_number(step), action=action)


def _parse_number(text: str) -> int | None:
    return None if text == "*" else int(text)


def _signal_myself(signum: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), signum)


def _hold_gil() -> None:
    """Sleep in C without releasing the GIL, so that no other thread of this process runs."""
    ctypes.PyDLL(None).sleep(int(FOREVER_S))


def _run_out_of_memory() -> None:
    raise MemoryError("asked for by FAULT")


def _run_out_of_gpu_memory() -> None:
    """Raise torch's error of a full GPU."""
    from torch import OutOfMemoryError  # torch is loaded by now; a start without FAULT must not get slower

    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB (asked for by FAULT)")


# Actions that need no value of the training.
ACTIONS: Final[Mapping[str, Callable[[], None]]] = {
    "kill9": _signal_myself(signal.SIGKILL),
    "stop": _signal_myself(signal.SIGSTOP),
    "term": _signal_myself(signal.SIGTERM),
    "hang": _hold_gil,
    "sleep": lambda: time.sleep(FOREVER_S),
    "nap": lambda: time.sleep(3.0),
    "exit0": lambda: os._exit(0),
    "oom": _run_out_of_memory,
    "gpu-oom": _run_out_of_gpu_memory,
}
# Actions that change a value: `corrupt_loss`, `flip_parameter_bit`.
VALUE_ACTIONS: Final[Mapping[str, tuple[str, ...]]] = {"loss": tuple(LOSS_FACTORS), "param": ("flip",)}
