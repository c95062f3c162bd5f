"""The arguments of models that the config or the data decides."""

from __future__ import annotations

import pytest

from entrypoint import Failure
from train.config import checks
from train.config.schema import ModelConfig


@pytest.mark.parametrize("name", ["resnet18", "timm/resnet18"])
@pytest.mark.parametrize("argument", ["pretrained", "num_classes", "checkpoint_path"])
def test_arguments_that_the_data_or_the_config_decides_are_refused(name: str, argument: str) -> None:
    with pytest.raises(Failure, match=f"cannot set {argument} of {name}") as caught:
        checks.refuse_forbidden_arguments(ModelConfig(name=name, args={argument: 1}))
    assert caught.value.code == 64


@pytest.mark.parametrize("name", ["resnet18", "small_cnn", "mine:make"])
def test_what_only_building_a_model_tells_is_left_to_it(name: str) -> None:
    checks.refuse_forbidden_arguments(ModelConfig(name=name, args={"anything": 1}))
