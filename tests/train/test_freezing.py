"""`model.freeze`: the backbone keeps its weights, for the whole run or for its first epochs, on any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from jobs import built, trained
from processes import python, unmeasured
from runs import TEN_STEPS, Run
from torch import Tensor

from entrypoint import Failure
from train.config import load
from train.config.load import keep_last_overrides
from train.config.schema import ModelConfig
from train.data.shape import Shape
from train.models import registry, weights
from train.models.freezing import build_freezing

# Four steps an epoch; the backbone is frozen in the first epoch.
THAWED = (
    "data.samples=240",
    "model.freeze=1",
    "model.args.norm=batch",
    "train.epochs=3",
    "checkpoint.every_steps=1",
    "checkpoint.keep=20",
    "optim.lr=0.01",
)


def weights_of(folder: Path, step: int) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in Run(folder=folder).weights(step).items()}


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_a_frozen_backbone_keeps_its_weights_and_its_statistics(tmp_path: Path) -> None:
    with built(tmp_path, "model.freeze=backbone", "model.args.norm=batch") as trainer:
        network = trainer.state.network
        before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        trainer.fit()
        assert changed(before, network.state_dict()) == set(weights.head_names(network))
        assert len(trainer.parallel.optimizer.param_groups[0]["params"]) == 2
        assert any("frozen for the whole run" in note for note in trainer.notes)


@pytest.mark.parametrize("settings", [(), ("optim.name=adamw",), ("train.reproducible=bitwise",)], ids=str)
def test_after_its_epochs_the_backbone_is_trained_too(tmp_path: Path, settings: tuple[str, ...]) -> None:
    steps = ("model.freeze=1", "checkpoint.every_steps=1", "checkpoint.keep=20", *settings)
    trainer = trained(tmp_path, *steps)
    backbone = set(trainer.freezing.backbone)  # type: ignore[union-attr]
    after = {step: weights_of(tmp_path, step) for step in (1, 4, 5)}
    assert changed(after[1], after[4]) == set(after[1]) - backbone
    assert changed(after[4], after[5]) == set(after[1])


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("freezing")
    (folder / "ten.yaml").write_text(TEN_STEPS)
    return folder


def run(shared_folder: Path, ranks: int, name: str, *settings: str) -> Path:
    """The folder of the run with this name after one more start."""
    command = ["-m", "train", "--config", "ten.yaml", "--device", "cpu", "--procs-per-node", str(ranks)]
    ended = python(
        *command, f"run.name={name}", *keep_last_overrides([*THAWED, *settings]), cwd=shared_folder, env=unmeasured()
    )
    assert ended.returncode == 0, ended.stderr
    return shared_folder / "runs" / name


@pytest.fixture(scope="module")
def uninterrupted(shared_folder: Path) -> Path:
    """An uninterrupted run on two ranks."""
    return run(shared_folder, 2, "whole")


def test_two_ranks_learn_what_one_learns(shared_folder: Path) -> None:
    """Two steps with all layers. Later steps differ more, also without model.freeze: at an edge of ReLU or a pool."""
    group = ("model.args.norm=group", "train.max_steps=6")
    alone, both = (run(shared_folder, ranks, f"on-{ranks}", *group) for ranks in (1, 2))
    for name, tensor in weights_of(alone, 6).items():
        torch.testing.assert_close(weights_of(both, 6)[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stopped_at", [3, pytest.param(4, marks=pytest.mark.slow), 6])
def test_a_run_that_resumes_before_or_after_has_the_same_bits(
    shared_folder: Path, uninterrupted: Path, stopped_at: int
) -> None:
    run(shared_folder, 2, f"halved-{stopped_at}", f"train.max_steps={stopped_at}")
    halved = run(shared_folder, 2, f"halved-{stopped_at}")
    assert changed(weights_of(uninterrupted, 10), weights_of(halved, 10)) == set()


def test_what_the_user_froze_stays_frozen() -> None:
    net = registry.build_model(ModelConfig(), classes=3, shape=Shape(channels=3, size=(8, 8)), seed=0)
    first = next(iter(net.parameters()))
    first.requires_grad_(False)
    freezing = build_freezing(ModelConfig(freeze=1), net, 4)
    assert freezing is not None
    assert [freezing.update(step) for step in (0, 3, 4, 5, 2)] == [True, False, True, False, True]
    assert freezing.update(9)
    assert not first.requires_grad
    assert all(parameter.requires_grad for parameter in freezing.backbone.values())


def test_a_network_of_one_layer_has_nothing_to_freeze() -> None:
    with pytest.raises(Failure, match=r"model\.freeze backbone does not fit"):
        build_freezing(ModelConfig(freeze="backbone"), torch.nn.Linear(3, 2), 4)


@pytest.mark.parametrize("value", ["0", "-1", "all", "1.5", "true"])
def test_other_values_are_refused(value: str) -> None:
    with pytest.raises(Failure) as caught:
        load.load_config(None, [f"model.freeze={value}"])
    assert caught.value.code == 64
