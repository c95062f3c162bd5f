"""The sums of a step that are the same on any number of ranks, and the models that have none."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from jobs import built
from torch import nn
from worlds import ALONE

from entrypoint import ExitCode, Failure
from train.distributed.bitwise import BitwiseReducer, refuse_hidden_state


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


@pytest.mark.parametrize("kind", [Counting, Replacing])
def test_a_model_that_remembers_its_batches_is_refused_and_left_as_it_was(kind: type[Counting]) -> None:
    net = kind()
    with pytest.raises(Failure, match="cannot be trained") as caught:
        refuse_hidden_state(net, torch.ones(2, 3))
    assert caught.value.code == ExitCode.USAGE
    assert "seen" in caught.value.found
    assert all(map(torch.equal, net.buffers(), Counting().buffers()))


def test_batchnorm_is_no_such_memory() -> None:
    refuse_hidden_state(nn.Sequential(nn.BatchNorm1d(3)), torch.ones(2, 3))


def test_synchronized_batchnorm_is_refused() -> None:
    with pytest.raises(Failure) as caught:
        BitwiseReducer(nn.Sequential(nn.SyncBatchNorm(3)), ALONE, micro_batches=4)
    assert caught.value.code == ExitCode.USAGE


def test_gradients_are_the_mean_over_micro_batches_and_zero_where_nothing_was_used() -> None:
    net = nn.ModuleList([nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)])
    exact = BitwiseReducer(net, ALONE, micro_batches=2)
    exact.begin_step()
    for value in (1.0, 3.0):
        net[0](torch.tensor([[value]])).sum().backward()
        exact.add(torch.tensor([value, 1.0]))
    assert exact.finish_step().tolist() == [4.0, 2.0]
    assert [parameter.grad.item() for parameter in net.parameters()] == [2.0, 0.0]


@pytest.mark.parametrize("settings", [[], ["train.clip_grad_norm=0.05", "optim.name=adamw"]], ids=["sgd", "clipped"])
def test_the_mode_trains_what_fast_trains_but_for_rounding(tmp_path: Path, settings: list[str]) -> None:
    found = []
    for mode in ("fast", "bitwise"):
        with built(tmp_path / mode, f"train.reproducible={mode}", *settings, "train.max_steps=2") as trainer:
            trainer.fit()
            found.append(torch.cat([weight.flatten() for weight in trainer.state.network.state_dict().values()]))
    assert torch.allclose(*found, atol=1e-5)
