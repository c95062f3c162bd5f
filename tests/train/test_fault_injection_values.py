"""What FAULT makes of a loss and of a parameter."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from train import fault_injection
from train.distributed.replica_check import hash_tensors


@pytest.mark.parametrize(("action", "holds"), [("nan", math.isnan), ("x1e3", lambda loss: loss == 2000)])
def test_a_loss_is_spoilt_once(action: str, holds: object) -> None:
    asked = fault_injection.parse_faults(f"loss:0:1:{action}", 0)
    values = [asked.corrupt_loss(step, torch.tensor(2.0)).item() for step in (0, 1, 1)]
    assert (values[0], values[2], holds(values[1])) == (2.0, 2.0, True)  # type: ignore[operator]


def test_a_spoilt_loss_has_spoilt_gradients() -> None:
    weight = torch.tensor(1.0, requires_grad=True)
    fault_injection.parse_faults("loss:0:0:x1e3", 0).corrupt_loss(0, 2 * weight).backward()
    assert weight.grad == 2000


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_one_bit_of_one_parameter_flips(kind: torch.dtype) -> None:
    net = nn.Conv2d(3, 4, 3).to(kind).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    before, bits = [p.detach().clone() for p in net.parameters()], hash_tensors(net.parameters())
    fault_injection.parse_faults("param:0:0:flip", 0).flip_parameter_bit(0, net)
    changed = sum(int((old != new).sum()) for old, new in zip(before, net.parameters(), strict=True))
    assert (changed, hash_tensors(net.parameters()) != bits) == (1, True)


def test_nothing_asked_for_changes_nothing() -> None:
    net, value = nn.Linear(2, 2), torch.tensor(2.0)
    bits = hash_tensors(net.parameters())
    faults = fault_injection.FaultInjector()
    faults.flip_parameter_bit(0, net)
    assert (faults.corrupt_loss(0, value) is value, hash_tensors(net.parameters()) == bits) == (
        True,
        True,
    )
