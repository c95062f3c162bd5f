"""Values that FAULT asks to be wrong: a loss, one bit of a parameter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn

from train.fault_injection import FaultInjector

WORDS: Final = {2: torch.int16, 4: torch.int32, 8: torch.int64}
BIT: Final = 6  # of the mantissa: too small a change for the loss to show
FACTORS: Final[Mapping[str, float]] = {"nan": float("nan"), "x1e3": 1e3}


def loss(faults: FaultInjector, step: int, value: Tensor) -> Tensor:
    """The loss of a micro batch, or what is to stand for it."""
    action = faults.due("loss", step) if faults.waiting else None
    return value if action is None else value * FACTORS[action]


def parameters(faults: FaultInjector, step: int, net: nn.Module) -> None:
    """Flip one bit of the first parameter, if that is asked for."""
    if faults.waiting and faults.due("param", step) is not None:
        first = next(net.parameters()).data
        one = first[(0,) * first.dim()]
        one.view(WORDS[one.element_size()]).bitwise_xor_(1 << BIT)
