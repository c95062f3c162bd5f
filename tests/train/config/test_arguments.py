"""The arguments of models and optimizers, as the front door knows them."""

from __future__ import annotations

import inspect

import pytest

from entrypoint import Failure
from train.config import checks, schema
from train.config.schema import ModelConfig, OptimConfig
from train.models import registry
from train.optim import optimizer

OURS = {"params", "lr", "weight_decay"}


@pytest.mark.parametrize("name", schema.BUILTIN_MODELS)
def test_what_a_model_of_ours_takes_is_known(name: str) -> None:
    taken = [
        one for one in inspect.signature(registry.BUILTIN_MODELS[name]).parameters if one not in ("classes", "shape")
    ]
    assert list(checks.MODEL_ARGUMENTS[name]) == taken


@pytest.mark.parametrize("name", schema.SHORT_OPTIMIZERS + schema.TORCH_OPTIMIZERS)
def test_what_an_optimizer_takes_is_known(name: str) -> None:
    kind = optimizer.optimizer_class(name)
    ours = OURS | ({"momentum"} if kind.__name__ == "SGD" else set())
    assert set(checks.OPTIMIZER_ARGUMENTS[name]) == set(inspect.signature(kind).parameters) - ours


def test_a_slip_is_told_with_the_nearest_word() -> None:
    with pytest.raises(Failure, match=r"optim\.args do not fit sgd") as caught:
        checks.refuse_unknown_arguments(ModelConfig(), OptimConfig(args={"nestrov": True}))
    assert caught.value.fix == "write optim.args.nesterov instead of optim.args.nestrov"


def test_what_only_building_a_model_tells_is_left_to_it() -> None:
    checks.refuse_unknown_arguments(ModelConfig(name="resnet18", args={"anything": 1}), OptimConfig())
