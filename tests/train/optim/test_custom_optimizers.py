"""An optimizer outside torch.optim: only the configuration names it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import lion
import pytest
import torch
from processes import python
from torch import nn

from entrypoint import Failure
from train.checkpoint import format
from train.config.schema import OptimConfig
from train.optim import optimizer

# Lion, and classes that a training cannot use.
CODE = f"""
from collections import deque
{Path(lion.__file__).read_text()}
from torch.optim import SGD


class Plain(SGD):
    def __init__(self, params, **options):
        super().__init__(params, **options)


class Fixed(Optimizer):
    def __init__(self, params):
        super().__init__(params, dict())

    def step(self, closure=None):
        pass


class WithMomentum(Fixed):
    def __init__(self, params, momentum):
        super().__init__(params)
        self.given = momentum


class NeedsClosure(Fixed):
    def step(self, closure):
        closure()


class KeepsQueue(Fixed):
    def step(self, closure=None):
        self.state["last"] = dict(losses=deque())


class Broken(Fixed):
    def step(self, closure=None):
        raise LookupError("no step")


def make(params):
    return Lion(params)
"""
LINE = CODE[: CODE.index("raise LookupError")].count("\n") + 1
NET = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "users_optimizer.py").write_text(CODE)
    yield tmp_path
    sys.modules.pop("users_optimizer", None)


def build(name: str, **keys: object) -> torch.optim.Optimizer:
    return optimizer.build_optimizer(OptimConfig(name=f"users_optimizer:{name}", **{"lr": 0.1, **keys}), NET)  # type: ignore[arg-type]


def test_the_config_sets_what_the_class_takes(module: Path) -> None:
    group = build("Lion", lr=0.3, weight_decay=0.1, args={"betas": [0.5, 0.6]}).param_groups[0]
    assert [group[key] for key in ("lr", "weight_decay", "betas")] == [0.3, 0.1, (0.5, 0.6)]
    assert "momentum" not in group
    assert build("WithMomentum", momentum=0.7).given == 0.7  # type: ignore[attr-defined]


def test_a_class_that_takes_any_argument_gets_those_of_optim_args(module: Path) -> None:
    made = build("Plain", lr=0.3, args={"lr": 0.2, "momentum": 0.5, "weight_decay": 0.1})
    assert [made.param_groups[0][key] for key in ("lr", "momentum", "weight_decay")] == [0.2, 0.5, 0.1]
    optimizer.set_learning_rate(made, 0.01)
    assert made.param_groups[0]["lr"] == 0.01


def test_a_class_without_a_learning_rate_keeps_none(module: Path) -> None:
    made = build("Fixed")
    optimizer.set_learning_rate(made, 0.01)
    assert "lr" not in made.param_groups[0]


REFUSED = {
    "no-such-class": ("Lyon", {}, "has no Lyon"),
    "a-function": ("make", {}, "make is no optimizer"),
    "another-class": ("deque", {}, "a subclass of torch.optim.Optimizer"),
    "an-unknown-argument": ("Lion", {"beta": 0.9}, "unknown: beta"),
    "a-key-of-the-config": ("Lion", {"lr": 0.9}, "unknown: lr"),
    "a-closure": ("NeedsClosure", {}, "missing 1 required positional argument: 'closure'"),
    "what-no-checkpoint-holds": ("KeepsQueue", {}, "cannot keep a deque without pickle"),
    "its-own-error": ("Broken", {}, f"users_optimizer.py, line {LINE}: LookupError: no step"),
}


@pytest.mark.parametrize(("name", "args", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_train_is_refused(module: Path, name: str, args: dict[str, object], message: str) -> None:
    with pytest.raises(Failure) as caught:
        build(name, args=args)
    assert caught.value.code == 64
    assert message in str(caught.value)


def test_a_class_beside_the_config_is_found_and_trains(module: Path) -> None:
    (module / "cfg.yaml").write_text(
        "data: {samples: 80, image_size: 8, classes: 2}\n"
        "optim: {name: 'users_optimizer:Lion', lr: 0.001}\n"
        "train: {epochs: 2, global_batch_size: 16, max_steps: 2}\n"
        "log: {tensorboard: false}\n"
    )
    line, cpu = ("-P", "-m", "train"), {"ENTRYPOINT_DEVICE": "cpu"}
    checked = python(*line, "check", "--config", "cfg.yaml", environ=cpu, cwd=module)
    assert "users_optimizer:Lion, weight decay 0.0005 and momentum 0.9 where it takes them" in checked.stdout
    done = python(*line, "--config", "cfg.yaml", environ=cpu, cwd=module)
    assert done.returncode == 0, done.stdout + done.stderr
    state = json.loads((module / "runs/cfg/checkpoints/step-00000002/state.json").read_text())["state"]
    assert "moment" in json.dumps(state["optimizer"])


def test_lamb_of_timm_goes_on_from_a_checkpoint_with_the_same_bits() -> None:
    optim = OptimConfig(name="timm.optim:Lamb", lr=8e-3, weight_decay=0.02, weight_decay_on="weights")

    def trained(*, stops: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3))
        made = optimizer.build_optimizer(optim, net)
        assert [group["weight_decay"] for group in made.param_groups] == [0.02, 0.0]
        inputs = torch.randn(16, 4)
        for step in range(4):
            if stops and step == 2:
                saved = format.pack_state(made.state_dict())
                made = optimizer.build_optimizer(optim, net)
                made.load_state_dict(format.unpack_state(*saved))
            net(inputs).square().mean().backward()
            made.step()
            made.zero_grad()
        return [weight.detach() for weight in net.parameters()]

    for whole, resumed in zip(trained(stops=False), trained(stops=True), strict=True):
        assert torch.equal(whole, resumed)
