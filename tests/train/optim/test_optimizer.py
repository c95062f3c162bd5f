"""An optimizer is built from its name and arguments, with a rate and a weight decay for each parameter."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import lion
import pytest
import timm
import torch
import torchvision
from inference import run_command
from processes import python
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import profile

from entrypoint import Failure
from train.checkpoint import format
from train.config.optimizers import OPTIMIZERS
from train.config.schema import ModelConfig, OptimConfig
from train.data.shape import Shape
from train.models import registry
from train.models.depth import layer_numbers
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


UNFIT_ARGUMENTS = {
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


@pytest.mark.parametrize(("name", "args", "named"), UNFIT_ARGUMENTS.values(), ids=UNFIT_ARGUMENTS.keys())
def test_arguments_that_do_not_fit_are_refused_by_name(name: str, args: dict[str, object], named: str) -> None:
    with pytest.raises(Failure, match=rf"optim\.args do not fit {name}") as caught:
        optimizer.build_optimizer(OptimConfig(lr=0.1, name=name, args=args), NET)
    assert caught.value.code == 64
    assert named in str(caught.value)


def after_one_step(kind: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    net = nn.Linear(3, 2)
    made = kind(net.parameters(), lr=0.1)  # type: ignore[call-arg]
    net(torch.ones(1, 3)).sum().backward()
    made.step()
    return made


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_an_optimizer_takes_the_state_of_another_start(kind: type[torch.optim.Optimizer]) -> None:
    before, after = after_one_step(kind), after_one_step(kind)
    optimizer.restore_optimizer(after, before.state_dict())
    assert after.state_dict()["param_groups"] == before.state_dict()["param_groups"]


@pytest.mark.parametrize("change", [{"lr": [1]}, {"betas": (0.9,)}, {"eps": "x"}, {"betas": 0.9}])
def test_settings_of_another_type_are_refused(change: dict[str, Any]) -> None:
    saved = after_one_step(torch.optim.AdamW).state_dict()
    saved["param_groups"][0].update(change)
    with pytest.raises(ValueError, match=f"^optimizer {next(iter(change))} is "):
        optimizer.restore_optimizer(after_one_step(torch.optim.AdamW), saved)


def test_a_setting_that_is_missing_is_refused() -> None:
    saved = after_one_step(torch.optim.AdamW).state_dict()
    del saved["param_groups"][0]["lr"]
    with pytest.raises(ValueError, match=r"^optimizer lr is None"):
        optimizer.restore_optimizer(after_one_step(torch.optim.AdamW), saved)


@pytest.mark.parametrize("moments", [7, {"momentum_buffer": "x"}, {"momentum_buffer": {}}, [1]])
def test_moments_that_are_none_are_refused(moments: object) -> None:
    saved = after_one_step(torch.optim.SGD).state_dict()
    saved["state"][0] = moments
    with pytest.raises(ValueError, match=r"^optimizer "):
        optimizer.restore_optimizer(after_one_step(torch.optim.SGD), saved)


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


def build_network(name: str) -> nn.Module:
    return registry.build_model(ModelConfig(name=name), classes=3, shape=Shape(channels=3, size=(32, 32)), seed=0)


@pytest.mark.parametrize("weight_decay_on", ["all", "weights"])
def test_every_parameter_is_in_one_group_with_the_rate_of_its_layer(weight_decay_on: str) -> None:
    net = build_network("resnet18")
    optim = OptimConfig(layer_decay=0.5, weight_decay_on=weight_decay_on)  # type: ignore[arg-type]
    groups = optimizer.param_groups(net, optim)
    numbers = layer_numbers(net)
    last = max(numbers.values())
    scales = {id(parameter): group["lr_scale"] for group in groups for parameter in group["params"]}
    assert sum(len(group["params"]) for group in groups) == len(scales) == len(list(net.parameters()))
    for name, parameter in net.named_parameters():
        assert scales[id(parameter)] == 0.5 ** (last - numbers[name])
    without = {id(p) for group in groups if group.get("weight_decay") == 0.0 for p in group["params"]}
    flat = {id(p) for p in net.parameters() if p.dim() <= 1}
    assert without == (flat if weight_decay_on == "weights" else set())


def test_the_schedule_is_multiplied_in_each_step() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    made = optimizer.build_optimizer(OptimConfig(lr=1.0, layer_decay=0.1), net)
    optimizer.set_learning_rate(made, 0.5)
    assert [group["lr"] for group in made.param_groups] == pytest.approx([0.05, 0.5])
    state = made.state_dict()
    made.load_state_dict(state)
    optimizer.set_learning_rate(made, 0.2)
    assert [group["lr"] for group in made.param_groups] == pytest.approx([0.02, 0.2])


def test_frozen_layers_are_in_no_group() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).requires_grad_(False)
    net[1].requires_grad_(True)
    (group,) = optimizer.param_groups(net, OptimConfig(layer_decay=0.1))
    assert group["lr_scale"] == 1.0
    assert all(map(torch.equal, group["params"], net[1].parameters()))


WEIGHTS_ONLY = OptimConfig(weight_decay=0.1, weight_decay_on="weights")


def parameter_names(net: nn.Module, groups: Sequence[Mapping[str, Any]]) -> dict[tuple[float, float], set[str]]:
    """The names of the parameters of each weight decay and scale of the learning rate."""
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    sets: dict[tuple[float, float], set[str]] = {}
    for group in groups:
        key = (group.get("weight_decay", 0.1), group.get("lr_scale", 1.0))
        sets.setdefault(key, set()).update(names[id(parameter)] for parameter in group["params"])
    return sets


def undecayed(net: nn.Module, optim: OptimConfig = WEIGHTS_ONLY) -> set[str]:
    """The names of the parameters of several dimensions that get no weight decay."""
    of_groups = parameter_names(net, optimizer.param_groups(net, optim))
    without = {name for (decay, _), names in of_groups.items() if decay == 0 for name in names}
    return {name for name in without if net.get_parameter(name).dim() > 1}


# Tokens and position embeddings; a table of position biases; a network that computes them; a pattern; a convolution.
TIMM = (
    *(
        "timm/test_vit",
        "timm/deit_tiny_distilled_patch16_224",
        "timm/beit_base_patch16_224",
        "timm/swin_tiny_patch4_window7_224",
    ),
    *("timm/swinv2_tiny_window8_256", "timm/xcit_nano_12_p16_224", "timm/twins_svt_small", "timm/mvitv2_tiny"),
    *(
        "timm/levit_128s",
        "timm/test_convnext",
        "timm/test_resnet",
        "timm/edgenext_xx_small",
        "timm/maxvit_rmlp_pico_rw_256",
    ),
)


@pytest.mark.parametrize("name", TIMM)
def test_the_weights_that_decay_are_those_of_timm(name: str) -> None:
    with torch.device("meta"):
        net = timm.create_model(name.removeprefix("timm/"), num_classes=3)
    skipped = net.no_weight_decay() if hasattr(net, "no_weight_decay") else ()
    timm_groups = param_groups_weight_decay(net, 0.1, no_weight_decay_list=skipped)
    assert parameter_names(net, optimizer.param_groups(net, WEIGHTS_ONLY)) == parameter_names(net, timm_groups)
    assert len(parameter_names(net, optimizer.param_groups(net, OptimConfig(weight_decay_on="all")))) == 1


@pytest.mark.parametrize("name", TIMM)
def test_the_layers_that_learn_slowly_are_those_of_timm(name: str) -> None:
    with torch.device("meta"):
        net = timm.create_model(name.removeprefix("timm/"), num_classes=3)
    skipped = net.no_weight_decay() if hasattr(net, "no_weight_decay") else ()
    timm_groups = param_groups_layer_decay(net, 0.1, no_weight_decay_list=skipped, layer_decay=0.5)
    groups = optimizer.param_groups(net, replace(WEIGHTS_ONLY, layer_decay=0.5))
    assert parameter_names(net, groups) == parameter_names(net, timm_groups)


@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("vit_b_32", {"class_token", "encoder.pos_embedding"}),
        ("swin_t", {"relative_position_bias_table"}),
        ("swin_v2_t", {"logit_scale"}),
        ("maxvit_t", {"relative_position_bias_table"}),
        ("convnext_tiny", {"layer_scale"}),
        ("video.mvit_v2_s", {"rel_pos_h", "rel_pos_w", "rel_pos_t"}),
        ("video.mvit_v1_b", {"spatial_pos", "temporal_pos"}),
        ("resnet18", set()),
    ],
)
@pytest.mark.parametrize("layer_decay", [None, 0.75])
def test_tokens_positions_and_scales_of_torchvision_do_not_decay(
    name: str, without: set[str], layer_decay: float | None
) -> None:
    with torch.device("meta"):
        net = attrgetter(name)(torchvision.models)(weights=None)
    undecayed_names = undecayed(net, replace(WEIGHTS_ONLY, layer_decay=layer_decay))
    ends = {name if name in without else name.rpartition(".")[2] for name in undecayed_names}
    assert ends == without
    weights = {f"{path}.weight" for path, module in net.named_modules() if isinstance(module, nn.Linear)}
    assert not weights & undecayed_names


def test_what_a_network_of_the_user_or_a_part_of_it_names_does_not_decay() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Parameter(torch.zeros(1, 4))
            self.backbone = timm.create_model("test_vit", num_classes=3)

    class Naming(Own):
        def no_weight_decay(self) -> set[str]:
            return {"query", "backbone.blocks.0.*"}

    assert undecayed(Own()) == {"backbone.cls_token", "backbone.pos_embed", "backbone.reg_token"} & {
        name for name, _ in Own().named_parameters()
    }
    assert "query" in undecayed(Naming())
    assert "backbone.blocks.0.attn.qkv.weight" in undecayed(Naming())
    assert "backbone.cls_token" not in undecayed(Naming())


def test_a_list_of_the_user_that_fails_is_refused() -> None:
    class Broken(nn.Linear):
        def no_weight_decay(self) -> set[str]:
            raise ValueError("no list")

    with pytest.raises(Failure, match=r"no_weight_decay\(\) failed") as caught:
        optimizer.param_groups(Broken(2, 2), WEIGHTS_ONLY)
    assert caught.value.code == 64


# Lion, and classes that a training cannot use.
OWN_OPTIMIZERS = f"""
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
FAILING_LINE = OWN_OPTIMIZERS[: OWN_OPTIMIZERS.index("raise LookupError")].count("\n") + 1


@pytest.fixture
def own_optimizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "users_optimizer.py").write_text(OWN_OPTIMIZERS)
    yield tmp_path
    sys.modules.pop("users_optimizer", None)


def build_own(name: str, **keys: object) -> torch.optim.Optimizer:
    return optimizer.build_optimizer(OptimConfig(name=f"users_optimizer:{name}", **{"lr": 0.1, **keys}), NET)  # type: ignore[arg-type]


def test_the_config_sets_what_the_class_takes(own_optimizers: Path) -> None:
    group = build_own("Lion", lr=0.3, weight_decay=0.1, args={"betas": [0.5, 0.6]}).param_groups[0]
    assert [group[key] for key in ("lr", "weight_decay", "betas")] == [0.3, 0.1, (0.5, 0.6)]
    assert "momentum" not in group
    assert build_own("WithMomentum", momentum=0.7).given == 0.7  # type: ignore[attr-defined]


def test_a_class_that_takes_any_argument_gets_those_of_optim_args(own_optimizers: Path) -> None:
    made = build_own("Plain", lr=0.3, args={"lr": 0.2, "momentum": 0.5, "weight_decay": 0.1})
    assert [made.param_groups[0][key] for key in ("lr", "momentum", "weight_decay")] == [0.2, 0.5, 0.1]
    optimizer.set_learning_rate(made, 0.01)
    assert made.param_groups[0]["lr"] == 0.01


def test_a_class_without_a_learning_rate_keeps_none(own_optimizers: Path) -> None:
    made = build_own("Fixed")
    optimizer.set_learning_rate(made, 0.01)
    assert "lr" not in made.param_groups[0]


UNUSABLE_CLASSES = {
    "no-such-class": ("Lyon", {}, "has no Lyon"),
    "a-function": ("make", {}, "make is no optimizer"),
    "another-class": ("deque", {}, "a subclass of torch.optim.Optimizer"),
    "an-unknown-argument": ("Lion", {"beta": 0.9}, "unknown: beta"),
    "a-key-of-the-config": ("Lion", {"lr": 0.9}, "unknown: lr"),
    "a-closure": ("NeedsClosure", {}, "missing 1 required positional argument: 'closure'"),
    "what-no-checkpoint-holds": ("KeepsQueue", {}, "cannot keep a deque without pickle"),
    "its-own-error": ("Broken", {}, f"users_optimizer.py, line {FAILING_LINE}: LookupError: no step"),
}


@pytest.mark.parametrize(("name", "args", "message"), UNUSABLE_CLASSES.values(), ids=UNUSABLE_CLASSES)
def test_what_cannot_train_is_refused(own_optimizers: Path, name: str, args: dict[str, object], message: str) -> None:
    with pytest.raises(Failure) as caught:
        build_own(name, args=args)
    assert caught.value.code == 64
    assert message in str(caught.value)


def test_a_class_beside_the_config_is_found_and_trains(
    own_optimizers: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_optimizers / "cfg.yaml").write_text(
        "data: {samples: 80, image_size: 8, classes: 2}\n"
        "optim: {name: 'users_optimizer:Lion', lr: 0.001}\n"
        "train: {epochs: 2, global_batch_size: 16, max_steps: 2}\n"
        "log: {tensorboard: false}\n"
    )
    assert run_command("check", "--config", own_optimizers / "cfg.yaml") == 0
    assert "users_optimizer:Lion, weight decay 0.0005 and momentum 0.9 where it takes them" in capsys.readouterr().out
    done = python("-P", "-m", "train", "--config", "cfg.yaml", "--device", "cpu", cwd=own_optimizers)
    assert done.returncode == 0, done.stdout + done.stderr
    state = json.loads((own_optimizers / "runs/cfg/checkpoints/step-00000002/state.json").read_text())["state"]
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

    for uninterrupted, resumed in zip(trained(stops=False), trained(stops=True), strict=True):
        assert torch.equal(uninterrupted, resumed)
