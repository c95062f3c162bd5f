"""`model.freeze`: the backbone keeps its weights, for the whole run or for its first epochs, on any number of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from grid import train_table, train_ten_steps
from jobs import built, trained
from runs import Run
from torch import Tensor

from entrypoint import Failure
from train.config import load
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
    "optim.lr=0.01",
)
GROUP = ("model.args.norm=group", "train.max_steps=6")


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


STOPS = (3, 4, 6)  # in the frozen epoch, at its end, and in the next


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two starts of each run on two ranks: FOLDER/NAME/2."""
    folder = tmp_path_factory.mktemp("freezing")
    stopped = {f"stopped-{stop}": [*THAWED, f"train.max_steps={stop}"] for stop in STOPS}
    train_table(folder, 2, {"uninterrupted": THAWED, "group": [*THAWED, *GROUP]} | stopped)
    train_table(folder, 2, dict.fromkeys(stopped, THAWED))
    return folder


def test_two_ranks_learn_what_one_learns(on_two_ranks: Path, tmp_path: Path) -> None:
    """Two steps with all layers. Later steps differ more, also without model.freeze: at an edge of ReLU or a pool."""
    alone = train_ten_steps(tmp_path / "alone", [*THAWED, *GROUP])
    for name, tensor in weights_of(alone.folder, 6).items():
        torch.testing.assert_close(weights_of(on_two_ranks / "group" / "2", 6)[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("stop", STOPS)
def test_a_run_that_resumes_before_or_after_has_the_same_bits(on_two_ranks: Path, stop: int) -> None:
    uninterrupted, resumed = (
        weights_of(on_two_ranks / name / "2", 10) for name in ("uninterrupted", f"stopped-{stop}")
    )
    assert changed(uninterrupted, resumed) == set()


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
