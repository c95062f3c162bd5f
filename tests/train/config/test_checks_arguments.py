"""The arguments of models and optimizers, as the front door knows them."""

from __future__ import annotations

import inspect

import pytest

from entrypoint import Failure
from train.config import checks
from train.config.models import BUILTIN_MODELS
from train.config.optimizers import OPTIMIZERS
from train.config.schema import ModelConfig, OptimConfig
from train.models import registry
from train.optim import optimizer

OURS = {"params", "lr", "weight_decay"}


@pytest.mark.parametrize("name", BUILTIN_MODELS)
def test_what_a_model_of_ours_takes_is_known(name: str) -> None:
    taken = list(inspect.signature(registry.model_builder(name)).parameters)
    assert taken == ["classes", "shape", *BUILTIN_MODELS[name].arguments]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_an_optimizer_takes_is_known(name: str) -> None:
    entry, taken = OPTIMIZERS[name], set(inspect.signature(optimizer.optimizer_class(name)).parameters)
    ours = OURS | ({"momentum"} if entry.takes_momentum else set())
    assert set(entry.arguments) == taken - ours
    assert entry.takes_weight_decay == ("weight_decay" in taken)


def test_a_slip_is_told_with_the_nearest_word() -> None:
    with pytest.raises(Failure, match=r"optim\.args do not fit sgd") as caught:
        checks.refuse_unknown_arguments(ModelConfig(), OptimConfig(args={"nestrov": True}))
    assert caught.value.fix == "write optim.args.nesterov instead of optim.args.nestrov"


@pytest.mark.parametrize("name", ["resnet18", "timm/resnet18"])
@pytest.mark.parametrize("argument", ["pretrained", "num_classes", "checkpoint_path"])
def test_arguments_that_the_data_or_the_config_decides_are_refused(name: str, argument: str) -> None:
    with pytest.raises(Failure, match=f"cannot set {argument} of {name}") as caught:
        checks.refuse_unknown_arguments(ModelConfig(name=name, args={argument: 1}), OptimConfig())
    assert caught.value.code == 64


def test_what_only_building_a_model_tells_is_left_to_it() -> None:
    checks.refuse_unknown_arguments(ModelConfig(name="resnet18", args={"anything": 1}), OptimConfig())
