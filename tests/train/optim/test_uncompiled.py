"""torch's optimizers step the same without the compiler, and without loading it."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from processes import python
from torch import nn
from torch.optim import SGD, Adafactor, AdamW, Optimizer, RMSprop
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import profile

from train.optim.uncompiled import uncompiled_class

STEPS = """
import sys, torch
from torch import nn
from torch.optim import SGD
from train.optim.uncompiled import uncompiled_class
kind = {kind}
net = nn.Linear(2, 2)
optimizer = kind(net.parameters(), lr=0.1, momentum=0.9)
for _ in range(2):
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules)
"""


def trained(kind: type[Optimizer]) -> torch.Tensor:
    torch.manual_seed(1)
    net = nn.Linear(4, 3)
    optimizer = kind(net.parameters(), lr=0.1)  # type: ignore[call-arg]
    for _ in range(3):
        net(torch.ones(2, 4)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
    return net.weight


@pytest.mark.parametrize("kind", [SGD, AdamW, Adafactor, RMSprop])
def test_its_steps_are_torchs_own_bit_by_bit(kind: type[Optimizer]) -> None:
    assert torch.equal(trained(uncompiled_class(kind)), trained(kind))


@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_it_is_called_as_torch_calls_it(kind: type[Optimizer]) -> None:
    assert uncompiled_class(kind).__name__ == kind.__name__
    assert issubclass(uncompiled_class(kind), kind)


def test_hooks_and_differentiable_steps_work() -> None:
    weight, seen = nn.Parameter(torch.ones(1)), []
    weight.grad = torch.ones(1)
    optimizer = uncompiled_class(SGD)([weight], lr=0.1)  # type: ignore[call-arg]
    optimizer.register_step_post_hook(lambda *_: seen.append(torch.is_grad_enabled()))
    assert optimizer.step(lambda: torch.tensor(3.0)) == 3  # type: ignore[arg-type, return-value]
    assert seen == [True]


def test_a_hook_of_all_optimizers_works() -> None:
    seen: list[str] = []
    handle = register_optimizer_step_post_hook(lambda optimizer, *_: seen.append(type(optimizer).__name__))
    try:
        trained(uncompiled_class(SGD))
    finally:
        handle.remove()
    assert seen == ["SGD"] * 3


def test_a_profiler_sees_each_step() -> None:
    with profile() as found:
        trained(uncompiled_class(SGD))
    assert [event.count for event in found.key_averages() if event.key == "Optimizer.step#SGD.step"] == [3]


def reported(kind: type[Optimizer], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What three steps tell a profiler that is not there, by name."""
    seen: list[str] = []

    def record(name: str) -> nullcontext[None]:
        seen.append(name)
        return nullcontext()

    monkeypatch.setattr(torch.autograd.profiler, "record_function", record)
    trained(kind)
    return [name for name in seen if ".step" in name]


def test_a_step_that_nobody_watches_is_told_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    assert reported(uncompiled_class(SGD), monkeypatch) == []


def test_torch_itself_still_tells_it_so_that_this_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails once torch has mended it."""
    assert len(reported(SGD, monkeypatch)) == 3


def test_the_compiler_is_not_loaded() -> None:
    done = python("-c", STEPS.format(kind="uncompiled_class(SGD)"))
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.slow
def test_torch_itself_still_loads_it_so_that_this_is_needed() -> None:
    """Fails once torch has mended it: then `train/optim/uncompiled.py` can go."""
    assert python("-c", STEPS.format(kind="SGD")).stdout == "True\n"
