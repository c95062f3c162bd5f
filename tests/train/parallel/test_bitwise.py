"""The sums of a step that are the same on any number of ranks: gradients in one tree, running statistics at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import tree_ranks
from jobs import built
from ranks import together
from safetensors.torch import load_file
from torch import Tensor, nn

from entrypoint import ExitCode, Failure
from train.parallel.bitwise import Bitwise, ReductionTree, RunningStatistics
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
    results = []
    for mode in ("fast", "bitwise"):
        with built(tmp_path / mode, f"train.reproducible={mode}", *settings, "train.max_steps=2") as trainer:
            trainer.fit()
            results.append(torch.cat([weight.flatten() for weight in trainer.state.network.state_dict().values()]))
    assert torch.allclose(*results, atol=1e-5)


def reference(leaves: list[list[Tensor]]) -> list[Tensor]:
    """The tree as its definition says: halves, each added up alone."""
    if len(leaves) == 1:
        return leaves[0]
    middle = len(leaves) // 2
    return [a + b for a, b in zip(reference(leaves[:middle]), reference(leaves[middle:]), strict=True)]


def expected() -> list[Tensor]:
    return reference([tree_ranks.leaf(number) for number in range(tree_ranks.LEAVES)])


def test_a_rank_alone_adds_up_the_whole_tree() -> None:
    assert all(map(torch.equal, tree_ranks.total(0, 1), expected()))


def test_the_order_of_the_tree_matters() -> None:
    in_a_row = sum(tree_ranks.leaf(number)[0] for number in range(tree_ranks.LEAVES))
    assert not torch.equal(in_a_row, expected()[0])


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_rank_of_several_holds_the_same_bits(ranks: int, tmp_path: Path) -> None:
    together(tree_ranks.__file__, ranks, tmp_path / "ranks")
    for rank in range(ranks):
        tensors = load_file(tmp_path / "ranks" / f"{rank}.safetensors")
        assert all(torch.equal(tensors[str(number)], tensor) for number, tensor in enumerate(expected())), rank


def test_a_level_holds_one_sum_only() -> None:
    tree = ReductionTree(0, 1)
    for number in range(7):
        tree.add(tree_ranks.leaf(number))
    assert [size for size, _ in tree._waiting] == [4, 2, 1]


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
