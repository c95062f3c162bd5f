"""The names that the front door knows are those that torch and torchvision have."""

from __future__ import annotations

import inspect

import pytest
import torch
import torchvision

from train.config import schema
from train.config.optimizers import OPTIMIZERS

# What the loop cannot drive: a closure, sparse gradients, matrices only.
UNFIT = ("LBFGS", "SparseAdam", "Muon")


def test_every_classification_model_of_torchvision_is_known() -> None:
    assert sorted(schema.TORCHVISION_MODELS) == sorted(torchvision.models.list_models(module=torchvision.models))


def test_every_optimizer_of_torch_is_known() -> None:
    kinds = [kind for _, kind in inspect.getmembers(torch.optim, inspect.isclass)]
    real = {k.__name__ for k in kinds if issubclass(k, torch.optim.Optimizer)} - {"Optimizer"}
    assert {*(entry.class_name for entry in OPTIMIZERS.values()), *UNFIT} == real


@pytest.mark.parametrize("name", ["mine:make", "a.b.c:make_2", "_x._y:_z"])
def test_a_factory_is_a_module_and_a_name(name: str) -> None:
    assert schema.is_factory(name)


@pytest.mark.parametrize("name", ["mine", "mine:", ":make", "a b:c", "a.:c", "a/b:c", "a:b:c", "1a:b", "a:b()", ""])
def test_anything_else_is_not_a_factory(name: str) -> None:
    assert not schema.is_factory(name)
