"""The sums of a step that are the same on any number of ranks, and the models that have none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from jobs import built
from torch import nn

from entrypoint import ExitCode, Failure
from train.parallel.bitwise import Bitwise
from train.tasks.base import StepLoss


class Counting(nn.Module):
    """Remembers something of its batches that is no BatchNorm's."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.get_buffer("seen").add_(1)
        return self.norm(x)  # type: ignore[no-any-return]


class Replacing(Counting):
    """Remembers it in a new tensor each time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = 0.9 * self.seen + 1
        return self.norm(x)  # type: ignore[no-any-return]


def example_loss(model: nn.Module) -> StepLoss:
    return StepLoss(loss=model(torch.ones(2, 3)).sum(), samples=2, values={})


@pytest.mark.parametrize("kind", [Counting, Replacing])
def test_a_model_that_remembers_its_batches_is_refused_and_left_as_it_was(kind: type[Counting]) -> None:
    net = kind()
    with pytest.raises(Failure, match="cannot be trained") as caught:
        Bitwise.refuse_unfit_network(net, example_loss)
    assert caught.value.code == ExitCode.USAGE
    assert "seen" in caught.value.found
    assert all(map(torch.equal, net.buffers(), Counting().buffers()))


def test_batchnorm_is_no_such_memory() -> None:
    Bitwise.refuse_unfit_network(nn.Sequential(nn.BatchNorm1d(3)), example_loss)


def test_synchronized_batchnorm_is_refused() -> None:
    with pytest.raises(Failure) as caught:
        Bitwise.refuse_unfit_network(nn.Sequential(nn.SyncBatchNorm(3)), example_loss)
    assert caught.value.code == ExitCode.USAGE


def test_gradients_and_values_are_means_over_micro_batches_and_zero_where_nothing_was_used(tmp_path: Path) -> None:
    net, losses = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)]), [1.0, 3.0]

    def compute() -> StepLoss:
        value = losses.pop(0)
        values = {"accuracy": torch.tensor(2), "other": torch.tensor(value)}
        return StepLoss(loss=net[0](torch.tensor([[value]])).sum(), values=values, samples=8)

    with built(tmp_path, "train.reproducible=bitwise") as trainer:
        trainer.parallel.wrap(net, torch.optim.SGD(net.parameters(), lr=0.1))
        weight = net[0].weight.item()
        (logged,) = trainer.parallel.accumulate(compute)
    assert {name: value.item() for name, value in logged.values.items()} == {"accuracy": 4.0, "other": 4.0}
    assert (logged.loss.item(), logged.samples) == (pytest.approx(2 * weight), 16)
    assert [parameter.grad.item() for parameter in net.parameters()] == [2.0, 0.0]  # type: ignore[union-attr]


@pytest.mark.parametrize("settings", [[], ["train.clip_grad_norm=0.05", "optim.name=adamw"]], ids=["sgd", "clipped"])
def test_the_mode_trains_what_fast_trains_but_for_rounding(tmp_path: Path, settings: list[str]) -> None:
    found = []
    for mode in ("fast", "bitwise"):
        with built(tmp_path / mode, f"train.reproducible={mode}", *settings, "train.max_steps=2") as trainer:
            trainer.fit()
            found.append(torch.cat([weight.flatten() for weight in trainer.state.network.state_dict().values()]))
    assert torch.allclose(*found, atol=1e-5)
