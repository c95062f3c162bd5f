"""BatchNorm's running statistics, one update for all micro batches of a step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from train.parallel.bitwise import RunningStatistics


def batch(number: int) -> Tensor:
    return torch.randn(8, 3, generator=torch.Generator().manual_seed(number)) * (number + 1) + number


def step(statistics: RunningStatistics, net: nn.Module, *numbers: int) -> None:
    """One step with these micro batches."""
    statistics.open()
    sums: list[Tensor] = []
    for number in numbers:
        net(batch(number))
        leaf = statistics.taken()
        sums = [a + b for a, b in zip(sums, leaf, strict=True)] if sums else leaf
    statistics.update(sums)


@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
def test_one_micro_batch_leaves_what_torch_leaves(momentum: float | None) -> None:
    ours, torchs = nn.BatchNorm1d(3, momentum=momentum), nn.BatchNorm1d(3, momentum=momentum)
    statistics = RunningStatistics(ours)
    for number in range(3):
        step(statistics, ours, number)
        torchs(batch(number))
    for name, buffer in torchs.named_buffers():
        assert torch.allclose(ours.get_buffer(name), buffer, rtol=1e-6), name


def test_several_count_as_one_update_with_their_mean() -> None:
    norm = nn.BatchNorm1d(3)
    step(RunningStatistics(norm), norm, 1, 2)
    means, variances = (torch.stack([of(batch(n), 0) for n in (1, 2)]).mean(0) for of in (torch.mean, torch.var))
    assert torch.allclose(norm.get_buffer("running_mean"), 0.1 * means)
    assert torch.allclose(norm.get_buffer("running_var"), 0.9 + 0.1 * variances)
    assert int(norm.get_buffer("num_batches_tracked")) == 1


def test_a_norm_that_is_not_reached_keeps_its_statistics() -> None:
    net = nn.ModuleList([nn.BatchNorm1d(3), nn.BatchNorm1d(3)])
    step(RunningStatistics(net), net[0], 1)
    assert all(map(torch.equal, net[1].buffers(), nn.BatchNorm1d(3).buffers()))


def test_a_frozen_norm_keeps_its_statistics() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    net[1].eval()
    step(RunningStatistics(net), net, 1)
    assert all(map(torch.equal, net[1].buffers(), nn.BatchNorm1d(3).buffers()))
    assert not torch.equal(net[0].get_buffer("running_mean"), torch.zeros(3))


def test_a_norm_without_statistics_is_left_alone() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False))
    statistics = RunningStatistics(net)
    step(statistics, net, 1)
    assert statistics.taken() == []


def test_its_buffers_are_known_by_name() -> None:
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3))
    assert RunningStatistics.names(net) == {"0.running_mean", "0.running_var", "0.num_batches_tracked"}
