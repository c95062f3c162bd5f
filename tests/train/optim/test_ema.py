"""A running average of the weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from train.optim.ema import EMA


@pytest.fixture
def net() -> nn.Module:
    made = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    for parameter in made.parameters():
        nn.init.zeros_(parameter)
    return made


def fill(net: nn.Module, value: float) -> None:
    for parameter in net.parameters():
        nn.init.constant_(parameter, value)


def test_it_begins_with_the_weights_and_moves_towards_them(net: nn.Module) -> None:
    average = EMA(net, 0.75)
    fill(net, 8.0)
    average.update(10**6)
    assert average.tensors["0.weight"].unique().tolist() == [2.0]


def test_the_first_steps_count_for_more(net: nn.Module) -> None:
    average = EMA(net, 0.999)
    fill(net, 11.0)
    average.update(1)
    assert average.tensors["0.weight"].unique().tolist() == [9.0]  # 2 / 11 of what was, 9 / 11 of what is


def test_what_is_no_weight_is_averaged_if_it_is_a_number_with_fractions(net: nn.Module) -> None:
    assert set(net.state_dict()) - set(EMA(net, 0.5).tensors) == {"1.num_batches_tracked"}
    assert "1.running_mean" in EMA(net, 0.5).tensors


class Centred(nn.Module):
    """Keeps a running mean of its inputs, in a new tensor each time."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("c", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n] to the same."""
        self.c = 0.5 * self.c + 0.5 * x.mean()
        return x - self.c


def test_a_buffer_that_the_network_replaces_is_averaged_as_it_is_now() -> None:
    net = Centred()
    average = EMA(net, 0.75)
    net(torch.full((2,), 16.0))
    average.update(10**6)
    assert average.tensors["c"].item() == 2.0  # a quarter of 8


def test_an_average_that_was_kept_is_put_back(net: nn.Module) -> None:
    average, other = EMA(net, 0.5), EMA(net, 0.5)
    fill(net, 3.0)
    average.update(1)
    other.restore(average.tensors)
    assert torch.equal(other.tensors["0.weight"], average.tensors["0.weight"])


@pytest.mark.parametrize("saved", [{}, {"0.weight": torch.zeros(3, 3)}], ids=["nothing", "another-shape"])
def test_an_average_of_another_network_is_not(net: nn.Module, saved: dict[str, torch.Tensor]) -> None:
    with pytest.raises((KeyError, RuntimeError)):
        EMA(net, 0.5).restore(saved)


def test_with_an_interval_only_every_so_many_steps_count(net: nn.Module) -> None:
    average = EMA(net, 0.75, every=4)
    fill(net, 8.0)
    for step in (1, 2, 3):
        average.update(4 * 10**6 + step)
    assert average.tensors["0.weight"].unique().tolist() == [0.0]
    average.update(4 * 10**6)
    assert average.tensors["0.weight"].unique().tolist() == [2.0]
