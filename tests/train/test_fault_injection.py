"""FAULT: what it names, for whom, and that it strikes once."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from entrypoint import ExitCode, Failure
from train import fault_injection


def test_without_the_variable_nothing_is_waiting() -> None:
    assert fault_injection.parse_faults(None, 0).waiting == []


def test_a_fault_is_for_its_rank_only() -> None:
    assert fault_injection.parse_faults("fwd:1:5:kill9", 0).waiting == []
    assert fault_injection.parse_faults("fwd:1:5:kill9,bwd:*:2:stop", 1).due("bwd", 2) == "stop"


def test_a_fault_waits_for_its_site_and_step() -> None:
    found = fault_injection.parse_faults("fwd:0:5:kill9", 0)
    assert [found.due("fwd", 4), found.due("bwd", 5), found.due("fwd", 5)] == [None, None, "kill9"]


def test_a_fault_strikes_once() -> None:
    found = fault_injection.parse_faults("loss:*:*:nan", 0)
    assert [found.due("loss", 1), found.due("loss", 1)] == ["nan", None]


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
