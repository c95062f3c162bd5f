"""Whoever trains, tries, times or checks a network builds the same one, with the same optimizer and loss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from jobs import TINY, refused

from entrypoint import Failure
from train.components import Components, build_components, build_network
from train.config import load
from train.config.batches import StepCounts, compute_batch_sizes
from train.config.load import keep_last_overrides
from train.config.resolved import ResolvedConfig, resolve
from train.config.schema import ModelConfig
from train.data import registry
from train.data.shape import Shape
from train.data.splits import DataSplits
from train.models import registry as models
from train.tasks.classification import Classification

BATCHES = compute_batch_sizes(16, 8, 1)
STEPS = StepCounts(per_epoch=4, total=8, dropped=0)


def opened(*settings: str) -> tuple[ResolvedConfig, DataSplits]:
    config = load.load_config(None, keep_last_overrides([*TINY, *settings]))
    splits = registry.open_splits(config.data)
    return resolve(config, config, splits.task), splits


def num_trained(components: Components) -> int:
    return sum(len(group["params"]) for group in components.optimizer.param_groups)


def test_a_trial_has_the_weights_of_the_training() -> None:
    resolved, splits = opened()
    trained, tried = (
        build_components(resolved, splits, batches=BATCHES, steps=STEPS),
        build_components(resolved, splits),
    )
    for name, tensor in trained.network.state_dict().items():
        assert torch.equal(tensor, tried.network.state_dict()[name])
    assert num_trained(trained) == num_trained(tried)


def test_the_optimizer_does_not_know_what_is_frozen_for_the_whole_run() -> None:
    resolved, splits = opened("model.freeze=backbone")
    frozen, tried = build_components(resolved, splits, steps=STEPS), build_components(resolved, splits)
    assert frozen.freezing is not None
    assert tried.freezing is None
    assert num_trained(frozen) == num_trained(tried) - len(frozen.freezing.backbone)


def test_what_is_moved_is_where_the_training_computes() -> None:
    meta = torch.device("meta")
    components = build_components(
        *opened("optim.class_weights=[1,3]"), device=meta, move=lambda network: network.to(meta)
    )
    assert {parameter.device for parameter in components.network.parameters()} == {meta}
    assert isinstance(components.task, Classification)
    assert components.task.class_weights is not None
    assert components.task.class_weights.device == meta


def test_weights_of_classes_are_compared_also_where_networks_have_only_shapes() -> None:
    resolved, splits = opened("optim.class_weights=[1,3]")
    with torch.device("meta"):
        task = build_components(resolved, splits).task
    assert isinstance(task, Classification)
    assert task.class_weights is not None
    assert task.class_weights.tolist() == pytest.approx([0.5, 1.5])


def test_a_trained_network_has_the_stem_of_its_tensors() -> None:
    _, splits = opened("data.image_size=32")
    large = models.build_model(
        ModelConfig(name="resnet18", args={"small_stem": False}), classes=2, shape=splits.shape, seed=0
    )
    tensors, before = large.state_dict(), torch.get_rng_state()
    network = build_network(ModelConfig(name="resnet18"), tensors, splits, seed=0)
    assert torch.equal(torch.get_rng_state(), before)
    network.load_state_dict(tensors)


def test_a_trained_network_that_does_not_take_the_evaluated_size_is_refused() -> None:
    _, splits = opened("data.image_size=32")
    other = replace(splits, evaluation_shape=Shape(channels=3, size=(40, 40)))
    model = ModelConfig(name="timm/test_vit")
    with pytest.raises(Failure, match="does not take samples of 40 x 40 x 3"):
        build_network(model, {}, other, seed=0)


def test_a_start_uses_the_stem_of_its_weights_and_records_what_was_requested() -> None:
    config = load.load_config(None, ["model.name=resnet18"])
    fitted = replace(config, model=replace(config.model, args={"small_stem": True}))
    resolved = resolve(config, fitted, "classification")
    assert (resolved.requested.model, resolved.used.model) == (config.model, fitted.model)
    assert resolved.requested.optim == resolved.used.optim
    assert resolved.requested.optim.lr == 0.1


@pytest.mark.parametrize("setting", ["optim.args.nestrov=true", "model.args.widht=4"])
def test_wrong_arguments_are_refused_before_the_data_is_opened(setting: str, tmp_path: Path) -> None:
    failure = refused(tmp_path, "data.name=npz", "data.root=missing.npz", setting)
    section, _, name = setting.partition("=")[0].split(".")
    assert failure.what.startswith(f"{section}.args do not fit")
    assert failure.fix.endswith(f" instead of {section}.args.{name}")
