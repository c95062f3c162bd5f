"""The arguments of models and optimizers, as the front door knows them."""

from __future__ import annotations

import inspect

import pytest

from entrypoint import Failure
from train.models import networks
from train.optim import optimizers
from train.settings import arguments, names
from train.settings.config import Model, Optim

OURS = {"params", "lr", "weight_decay"}


@pytest.mark.parametrize("name", names.OWN_MODELS)
def test_what_a_model_of_ours_takes_is_known(name: str) -> None:
    taken = [one for one in inspect.signature(networks.OWN[name]).parameters if one not in ("classes", "shape")]
    assert list(arguments.MODELS[name]) == taken


@pytest.mark.parametrize("name", names.OPTIMIZERS + names.TORCH_OPTIMIZERS)
def test_what_an_optimizer_takes_is_known(name: str) -> None:
    kind = optimizers.optimizer_class(name)
    ours = OURS | ({"momentum"} if kind.__name__ == "SGD" else set())
    assert set(arguments.OPTIMIZERS[name]) == set(inspect.signature(kind).parameters) - ours


def test_a_slip_is_told_with_the_nearest_word() -> None:
    with pytest.raises(Failure, match=r"optim\.args do not fit sgd") as caught:
        arguments.refuse_unknown(Model(), Optim(args={"nestrov": True}))
    assert caught.value.fix == "write optim.args.nesterov instead of optim.args.nestrov"


def test_what_only_building_a_model_tells_is_left_to_it() -> None:
    arguments.refuse_unknown(Model(name="resnet18", args={"anything": 1}), Optim())
