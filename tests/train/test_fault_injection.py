"""FAULT: what it names, for whom, that it strikes once, and what it makes of a loss and of a parameter."""

from __future__ import annotations

import math
import os
import signal

import pytest
import torch
from torch import nn

from entrypoint import ExitCode, Failure
from train import fault_injection
from train.distributed.replica_check import hash_tensors


def test_without_the_variable_nothing_is_waiting() -> None:
    assert fault_injection.parse_faults(None, 0).waiting == []


def test_a_fault_is_for_its_rank_only() -> None:
    assert fault_injection.parse_faults("fwd:1:5:kill9", 0).waiting == []
    assert fault_injection.parse_faults("fwd:1:5:kill9,bwd:*:2:stop", 1).due("bwd", 2) == "stop"


def test_a_fault_waits_for_its_site_and_step() -> None:
    faults = fault_injection.parse_faults("fwd:0:5:kill9", 0)
    assert [faults.due("fwd", 4), faults.due("bwd", 5), faults.due("fwd", 5)] == [None, None, "kill9"]


def test_a_fault_strikes_once() -> None:
    faults = fault_injection.parse_faults("loss:*:*:nan", 0)
    assert [faults.due("loss", 1), faults.due("loss", 1)] == ["nan", None]


def test_an_action_is_done() -> None:
    with pytest.raises(MemoryError):
        fault_injection.parse_faults("step:0:3:oom", 0).strike("step", 3)


def test_a_full_gpu_raises_what_torch_raises() -> None:
    with pytest.raises(torch.OutOfMemoryError):
        fault_injection.parse_faults("fwd:0:3:gpu-oom", 0).strike("fwd", 3)


def test_every_rank_says_that_the_variable_is_set() -> None:
    assert fault_injection.parse_faults(None, 0).notes == ()
    assert "FAULT=fwd:1:5:kill9" in fault_injection.parse_faults("fwd:1:5:kill9", 0).notes[0]


def test_a_signal_goes_to_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, signum: sent.append((pid, signum)))
    fault_injection.parse_faults("step:0:3:kill9", 0).strike("step", 3)
    assert sent == [(os.getpid(), signal.SIGKILL)]


@pytest.mark.parametrize(
    "text",
    [
        "fwd",
        "fwd:0:1",
        "here:0:1:kill9",
        "fwd:0:1:explode",
        "fwd:x:1:stop",
        "fwd:0:1:stop:2",
        "fwd:0:1:nan",
        "loss:0:1:stop",
    ],
)
def test_what_names_no_fault_is_refused(text: str) -> None:
    with pytest.raises(Failure) as refused:
        fault_injection.parse_faults(text, 0)
    assert refused.value.code == ExitCode.USAGE
    assert f"FAULT={text}" in str(refused.value)


@pytest.mark.parametrize(("attempt", "waiting"), [("0", 1), ("1", 0)])
def test_a_fault_of_the_first_start_does_not_strike_after_a_restart_in_place(attempt: str, waiting: int) -> None:
    assert len(fault_injection.parse_faults("step:0:3:kill9:first", 0, attempt).waiting) == waiting


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
