"""A loss of the user's own: what it gets, what it may return, and what is refused before a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from focal import Focal
from jobs import built, refused
from torch.nn.functional import cross_entropy, smooth_l1_loss

from train import session
from train.config.environment import CallerVariables
from train.config.schema import OptimConfig
from train.tasks import TargetScale
from train.tasks.base import Task
from train.tasks.classification import Classification
from train.tasks.multi_label import MultiLabel
from train.tasks.regression import Regression

OUTPUTS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(6) % 3
WRITTEN = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy, smooth_l1_loss

class Each(nn.CrossEntropyLoss):
    def __init__(self):
        super().__init__(reduction="none")

def mean(outputs, labels): return cross_entropy(outputs, labels)
def number(outputs, labels): return smooth_l1_loss(outputs, labels, reduction="none")
def labels(outputs, labels): return (outputs.sigmoid() - labels).abs().sum(1)
def pairs(outputs, labels): return outputs[:, None] - outputs
def constant(outputs, labels): return torch.zeros(len(labels))
def value(outputs, labels): return 0.5
def fails(outputs, labels): return outputs.no_such_method()
class Trained(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
    def forward(self, outputs, labels): return self.scale * cross_entropy(outputs, labels, reduction="none")
class Empty(nn.ModuleList):
    def forward(self, outputs, labels): return 7 * cross_entropy(outputs, labels, reduction="none")
class Needs(nn.Module):
    def __init__(self, alpha): ...
"""


@pytest.fixture(autouse=True)
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_losses.py").write_text(WRITTEN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "users_losses", raising=False)


def with_loss(task: type[Task], name: str, labels: torch.Tensor, classes: int = 3, **changes: Any) -> Task:
    optim = OptimConfig(loss=f"users_losses:{name}", **changes)
    opened = task(classes=("a", "b", "c")[:classes], target=TargetScale(mean=2.0, std=4.0), optim=optim)
    return opened.for_training(labels, torch.device("cpu"))


def test_a_class_and_a_function_are_the_loss() -> None:
    batch = {"label": LABELS}
    expected = cross_entropy(OUTPUTS, LABELS)
    for name in ("Each", "mean"):
        task = with_loss(Classification, name, LABELS)
        torch.testing.assert_close(task.mean_loss(OUTPUTS, batch), expected)


def test_weights_and_mixed_labels_act_on_the_loss_of_each_sample() -> None:
    other, share, weight = LABELS.flip(0), torch.linspace(0, 1, 6), torch.linspace(1, 2, 6)
    task = with_loss(Classification, "Each", LABELS, class_weights=[1.0, 2.0, 3.0])
    plain = Classification(classes=("a", "b", "c"), optim=OptimConfig(class_weights=[1.0, 2.0, 3.0]))
    plain = plain.for_training(LABELS, torch.device("cpu"))
    batch = {"label": LABELS, "other": other, "share": share, "weight": weight}
    torch.testing.assert_close(task.mean_loss(OUTPUTS, batch), plain.mean_loss(OUTPUTS, batch))


def test_of_numbers_it_gets_both_in_standard_deviations() -> None:
    outputs, numbers = OUTPUTS[:, :1], torch.tensor([2.0, 6.0, -2.0, 10.0, 2.0, 2.0])
    task = with_loss(Regression, "number", numbers, 1)
    expected = smooth_l1_loss(outputs[:, 0], torch.tensor([0.0, 1.0, -1.0, 2.0, 0.0, 0.0]))
    torch.testing.assert_close(task.mean_loss(outputs, {"label": numbers}), expected)


def test_a_loss_of_length_0_is_not_taken_for_none() -> None:
    task = with_loss(Classification, "Empty", LABELS)
    assert torch.equal(task.training_losses(OUTPUTS, LABELS), 7 * cross_entropy(OUTPUTS, LABELS, reduction="none"))


def test_evaluations_report_the_loss_of_the_task() -> None:
    tags = torch.eye(3).repeat(2, 1)
    own = with_loss(MultiLabel, "labels", tags)
    batch = {"image": OUTPUTS, "label": tags}
    plain = MultiLabel(classes=own.classes)
    measured, expected = (task.measure(lambda images: images, batch, details=False) for task in (own, plain))
    assert measured.loss == expected.loss
    assert own.mean_loss(OUTPUTS, batch) != plain.mean_loss(OUTPUTS, batch)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("pairs", "Tensor [2, 2, 2], for outputs [2, 2] and labels [2]"),
        ("constant", "Tensor [2] without a gradient"),
        ("value", "float [] without a gradient"),
        ("fails", "AttributeError: 'Tensor' object has no attribute 'no_such_method'"),
        ("Needs", "missing 1 required positional argument: 'alpha'"),
        ("Trained", "scale"),
        ("no_such_loss", "Each"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_before_the_run(tmp_path: Path, name: str, problem: str) -> None:
    failure = refused(tmp_path / "run", f"optim.loss=users_losses:{name}")
    assert failure.what.startswith(f"optim.loss users_losses:{name}")
    assert (failure.code, problem in str(failure.found)) == (64, True), failure.found


@pytest.mark.parametrize("settings", ["data.augment=[mixup]", "optim.class_weights=[1,2]"])
def test_a_mean_is_refused_where_samples_count_differently(tmp_path: Path, settings: str) -> None:
    failure = refused(tmp_path / "run", "optim.loss=users_losses:mean", settings)
    assert failure.expected == "a tensor [2], the loss of each sample: they have weights or are mixed"


def test_the_run_records_it_and_goes_on_with_no_other(tmp_path: Path) -> None:
    with built(tmp_path / "run", "optim.loss=focal:Focal", "train.epochs=1") as trainer:
        assert isinstance(trainer.task.own_loss, Focal)
        assert "focal:Focal; evaluations report the task's own" in session.banner(
            trainer, CallerVariables(acting={}, removed={})
        )
        trainer.fit()
    failure = refused(tmp_path / "run")
    assert 'optim.loss: "focal:Focal" -> "auto"' in str(failure.found)
