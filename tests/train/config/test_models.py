"""The models and optimizers that the front door knows by name are those of torch, torchvision and timm."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import timm
import torch
import torchvision

from train.config import models, schema
from train.config.optimizers import OPTIMIZERS

# What the loop cannot drive: a closure, sparse gradients, matrices only.
UNFIT_OPTIMIZERS = ("LBFGS", "SparseAdam", "Muon")


def test_every_classification_model_of_torchvision_is_known() -> None:
    assert sorted(schema.TORCHVISION_MODELS) == sorted(torchvision.models.list_models(module=torchvision.models))


def test_every_model_of_timm_is_known() -> None:
    assert models.timm_models() == set(timm.list_models())


def test_timms_models_are_known_without_importing_timm() -> None:
    code = (
        "import sys; from train.config import load; "
        "print(load.load_config(None, ['model.name=timm/resnet18']).model.name, {'timm', 'torch'} & {*sys.modules})"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.split() == ["timm/resnet18", "set()"]


def test_the_smallest_member_of_each_family_is_a_model() -> None:
    assert set(models.SMALLEST_TORCHVISION_MODELS.values()) <= set(models.TORCHVISION_MODELS)
    assert set(models.SMALLEST_TIMM_MODELS) <= models.timm_models()


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [
        ("resnet", "resnet18"),
        ("ResNet-50", "resnet50"),
        ("resnet_18", "resnet18"),
        ("efficientnet", "efficientnet_b0"),
        ("vit", "vit_b_16"),
        ("torchvision.models.resnet34", "resnet34"),
        ("resnet26", "timm/resnet26"),
        ("resnet50.IMAGENET1K_V2", "resnet50"),
        ("timm/resnet50.a1_in1k", "timm/resnet50"),
        ("timm.resnet50", "timm/resnet50"),
        ("timm/rsnet50", "timm/resnet50"),
        ("timm/resnet", "timm/resnet10t"),
        ("timm/vit", "timm/vit_tiny_patch16_224"),
        ("timm/efficientnet", "timm/efficientnet_b0"),
        ("timm/mobilenet", "timm/mobilenetv3_small_050"),
        ("timm/swin", "timm/swin_tiny_patch4_window7_224"),
        ("timm/convnext", "timm/convnext_atto"),
        ("efficientformer", "timm/efficientformer_l1"),
        ("nothing_like_it", None),
        (50, None),
    ],
)
def test_an_unknown_model_gets_the_nearest_or_the_smallest_of_its_family(name: object, suggestion: str | None) -> None:
    assert models.suggest_model(name) == suggestion


def test_every_optimizer_of_torch_is_known() -> None:
    kinds = [kind for _, kind in inspect.getmembers(torch.optim, inspect.isclass)]
    real = {k.__name__ for k in kinds if issubclass(k, torch.optim.Optimizer)} - {"Optimizer"}
    assert {*(entry.class_name for entry in OPTIMIZERS.values()), *UNFIT_OPTIMIZERS} == real
