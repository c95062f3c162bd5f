"""Optimizers: which one, with what, on which parameters."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import profile

from entrypoint import Failure
from train.config.optimizers import OPTIMIZERS
from train.config.schema import OptimConfig
from train.optim import optimizer

NET = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))


def test_sgd_is_set_as_the_config_says() -> None:
    made = optimizer.build_optimizer(OptimConfig(lr=0.3, momentum=0.8, weight_decay=0.01, args={"nesterov": True}), NET)
    group = made.param_groups[0]
    assert isinstance(made, torch.optim.SGD)
    assert [group[key] for key in ("lr", "momentum", "weight_decay", "nesterov")] == [0.3, 0.8, 0.01, True]


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_adam_takes_betas_as_yaml_writes_them(name: str, kind: type) -> None:
    made = optimizer.build_optimizer(OptimConfig(name=name, lr=0.001, args={"betas": [0.8, 0.95]}), NET)
    assert isinstance(made, kind)
    assert made.param_groups[0]["betas"] == (0.8, 0.95)


@pytest.mark.parametrize("name", sorted({entry.class_name for entry in OPTIMIZERS.values()}))
def test_an_optimizer_of_torch_has_its_own_name(name: str) -> None:
    made = optimizer.build_optimizer(OptimConfig(name=name, lr=0.01), NET)
    assert type(made).__name__ == name
    assert made.param_groups[0]["lr"] == 0.01


def trained_weight(optimizer_type: type[torch.optim.Optimizer]) -> torch.Tensor:
    """A weight after three steps, with the optimizer's state loaded before the last."""
    torch.manual_seed(1)
    net = nn.Linear(4, 3)
    made = optimizer_type([net.weight], lr=0.01)  # type: ignore[call-arg]
    for _ in range(3):
        made.load_state_dict(made.state_dict())
        net(torch.ones(2, 4)).square().sum().backward()
        made.step()
        made.zero_grad()
    return net.weight


@pytest.mark.parametrize("name", sorted({entry.class_name for entry in OPTIMIZERS.values()}))
def test_an_optimizer_without_the_compiler_steps_as_torchs_own_to_the_bit(name: str) -> None:
    own = getattr(torch.optim, name)
    assert torch.equal(trained_weight(optimizer.without_compiler(own)), trained_weight(own))


def test_where_nobody_looks_torch_records_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded: list[str] = []
    monkeypatch.setattr(torch.autograd.profiler, "record_function", lambda name: nullcontext(recorded.append(name)))
    trained_weight(optimizer.without_compiler(torch.optim.SGD))
    assert [name for name in recorded if name.startswith("Optimizer.step")] == []


def test_hooks_and_a_profiler_see_each_step() -> None:
    seen: list[str] = []
    handle = register_optimizer_step_post_hook(lambda made, *_: seen.append(type(made).__name__))
    try:
        with profile() as profiled:
            trained_weight(optimizer.without_compiler(torch.optim.SGD))
    finally:
        handle.remove()
    assert seen == ["SGD"] * 3
    assert [event.count for event in profiled.key_averages() if event.key == "Optimizer.step#SGD.step"] == [3]


def test_momentum_is_not_given_to_another_that_has_one() -> None:
    assert (
        optimizer.build_optimizer(OptimConfig(lr=0.1, name="RMSprop", momentum=0.9), NET).param_groups[0]["momentum"]
        == 0
    )
    assert (
        optimizer.build_optimizer(OptimConfig(lr=0.1, name="RMSprop", args={"momentum": 0.5}), NET).param_groups[0][
            "momentum"
        ]
        == 0.5
    )


def test_weight_decay_is_for_all_parameters_unless_told() -> None:
    groups = optimizer.build_optimizer(OptimConfig(lr=0.1, weight_decay=0.1), NET).param_groups
    assert [(group["weight_decay"], len(group["params"])) for group in groups] == [(0.1, 4)]


def test_biases_and_norms_may_be_left_without_weight_decay() -> None:
    groups = optimizer.build_optimizer(
        OptimConfig(lr=0.1, weight_decay=0.1, weight_decay_on="weights"), NET
    ).param_groups
    assert [(group["weight_decay"], len(group["params"])) for group in groups] == [(0.1, 1), (0.0, 3)]


def test_frozen_parameters_are_left_out() -> None:
    net = nn.Linear(3, 2)
    net.bias.requires_grad_(False)
    assert [len(group["params"]) for group in optimizer.build_optimizer(OptimConfig(lr=0.1), net).param_groups] == [1]


def test_a_rate_is_set_in_every_group() -> None:
    made = optimizer.build_optimizer(OptimConfig(lr=0.1, weight_decay_on="weights"), NET)
    optimizer.set_learning_rate(made, 0.7)
    assert [group["lr"] for group in made.param_groups] == [0.7, 0.7]


def test_a_rate_that_is_a_tensor_is_set_in_place() -> None:
    made = optimizer.build_optimizer(OptimConfig(lr=0.1, name="Adam"), NET)
    made.param_groups[0]["lr"] = rate = torch.tensor(0.1)
    optimizer.set_learning_rate(made, 0.7)
    assert rate.item() == pytest.approx(0.7)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_one_kernel_updates_all_parameters(name: str) -> None:
    assert optimizer.build_optimizer(OptimConfig(lr=0.1, name=name), NET).param_groups[0]["fused"]


OWN_KERNELS = [{"foreach": True}, {"fused": False}, {"dampening": 0.5, "foreach": False}]


@pytest.mark.parametrize("args", OWN_KERNELS, ids=str)
def test_kernels_that_the_config_asks_for_stay(args: dict[str, object]) -> None:
    made = optimizer.build_optimizer(OptimConfig(lr=0.1, args=args), NET).param_groups[0]
    assert {name: made[name] for name in args} == args
    assert not made["fused"]


def test_a_part_of_the_network_may_be_used_later_for_the_first_time() -> None:
    early, late = nn.Linear(2, 2), nn.Linear(2, 2)
    made = optimizer.build_optimizer(OptimConfig(lr=0.5, weight_decay=0.0), nn.ModuleList([early, late]))
    made.load_state_dict(made.state_dict())
    for layers in ([early], [early, late]):
        sum(layer(torch.ones(1, 2)).sum() for layer in layers).backward()
        made.step()
        made.zero_grad()
    assert made.state[late.weight]["momentum_buffer"].eq(1).all()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_table_says_which_keys_of_the_config_an_optimizer_takes(name: str) -> None:
    taken = inspect.signature(optimizer.optimizer_class(name)).parameters
    assert OPTIMIZERS[name].takes_weight_decay == ("weight_decay" in taken)
    assert not OPTIMIZERS[name].takes_momentum or "momentum" in taken


BAD = {
    "unknown": ("sgd", {"nestrov": True}, "nestrov"),
    "the-rate": ("sgd", {"lr": 1.0}, "lr"),
    "the-decay": ("adamw", {"weight_decay": 1.0}, "weight_decay"),
    "sgds-momentum": ("sgd", {"momentum": 0.5}, "momentum"),
    "the-parameters": ("adam", {"params": []}, "params"),
    "refused-by-torch": ("sgd", {"nesterov": True, "dampening": 0.5}, "dampening"),
    "betas-out-of-range": ("adamw", {"betas": [0.9, 1.5]}, "1.5"),
    "one-beta": ("adam", {"betas": 0.9}, "0.9"),
    "a-list-of-one-beta": ("adamw", {"betas": [0.9]}, "[0.9]"),
    "text": ("adam", {"eps": "small"}, "small"),
    "negative": ("RMSprop", {"alpha": -1}, "alpha"),
    "a-word-for-a-switch": ("sgd", {"nesterov": "no"}, "nesterov is true or false, not 'no'"),
    "a-word-for-an-open-switch": ("adam", {"foreach": "off"}, "foreach is true or false"),
    "three-factors-of-two": ("Rprop", {"etas": [0.5, 1.2, 3]}, "too many values"),
    "text-where-a-step-needs-a-number": ("ASGD", {"t0": "soon"}, "t0"),
    "not-a-number-in-words": ("sgd", {"dampening": "nan"}, "nan"),
    "not-on-this-device": ("adam", {"capturable": True}, "capturable"),
    "what-keeps-weights-from-moving": ("sgd", {"differentiable": True}, "differentiable"),
    "another-optimizers": ("Adagrad", {"betas": [0.9, 0.9]}, "betas"),
}


@pytest.mark.parametrize(("name", "args", "named"), BAD.values(), ids=BAD.keys())
def test_arguments_that_do_not_fit_are_refused_by_name(name: str, args: dict[str, object], named: str) -> None:
    with pytest.raises(Failure, match=rf"optim\.args do not fit {name}") as caught:
        optimizer.build_optimizer(OptimConfig(lr=0.1, name=name, args=args), NET)
    assert caught.value.code == 64
    assert named in str(caught.value)


def stepped(kind: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    net = nn.Linear(3, 2)
    made = kind(net.parameters(), lr=0.1)  # type: ignore[call-arg]
    net(torch.ones(1, 3)).sum().backward()
    made.step()
    return made


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_an_optimizer_takes_the_state_of_another_start(kind: type[torch.optim.Optimizer]) -> None:
    before, after = stepped(kind), stepped(kind)
    optimizer.restore_optimizer(after, before.state_dict())
    assert after.state_dict()["param_groups"] == before.state_dict()["param_groups"]


@pytest.mark.parametrize("change", [{"lr": [1]}, {"betas": (0.9,)}, {"eps": "x"}, {"betas": 0.9}])
def test_settings_of_another_type_are_refused(change: dict[str, Any]) -> None:
    saved = stepped(torch.optim.AdamW).state_dict()
    saved["param_groups"][0].update(change)
    with pytest.raises(ValueError, match=f"^optimizer {next(iter(change))} is "):
        optimizer.restore_optimizer(stepped(torch.optim.AdamW), saved)


def test_a_setting_that_is_missing_is_refused() -> None:
    saved = stepped(torch.optim.AdamW).state_dict()
    del saved["param_groups"][0]["lr"]
    with pytest.raises(ValueError, match=r"^optimizer lr is None"):
        optimizer.restore_optimizer(stepped(torch.optim.AdamW), saved)


@pytest.mark.parametrize("moments", [7, {"momentum_buffer": "x"}, {"momentum_buffer": {}}, [1]])
def test_moments_that_are_none_are_refused(moments: object) -> None:
    saved = stepped(torch.optim.SGD).state_dict()
    saved["state"][0] = moments
    with pytest.raises(ValueError, match=r"^optimizer "):
        optimizer.restore_optimizer(stepped(torch.optim.SGD), saved)


@pytest.mark.parametrize(
    ("typed", "fix"), [("ture", "write true"), ("no", "write false: YAML 1.2 reads no as text")], ids=["ture", "no"]
)
def test_a_word_for_a_switch_is_answered_with_the_value_to_write(typed: str, fix: str) -> None:
    with pytest.raises(Failure, match=r"optim\.args do not fit sgd") as caught:
        optimizer.build_optimizer(OptimConfig(lr=0.1, args={"nesterov": typed}), NET)
    assert caught.value.fix == fix


def test_a_misspelled_argument_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(Failure, match=r"optim\.args do not fit sgd") as caught:
        optimizer.build_optimizer(OptimConfig(lr=0.1, args={"nestrov": True}), NET)
    assert caught.value.fix == "write optim.args.nesterov instead of optim.args.nestrov"
