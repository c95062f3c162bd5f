"""Which strategy a run has, and what it and a precision of one's own make of the network."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from jobs import built
from torch import nn

from train.config.precisions import PRECISIONS
from train.config.schema import TrainConfig
from train.parallel.base import Parallel
from train.parallel.bitwise import Bitwise
from train.parallel.strategies import DDP, DP, strategy_class


@pytest.mark.parametrize(
    ("parallel", "reproducible", "ranks", "expected"),
    [
        ("ddp", "fast", 1, Parallel),
        ("ddp", "fast", 2, DDP),
        ("none", "none", 1, Parallel),
        ("dp", "fast", 1, DP),
        ("ddp", "bitwise", 2, Bitwise),
        ("none", "bitwise", 1, Bitwise),
    ],
)
def test_the_config_and_the_number_of_ranks_choose_the_strategy(
    parallel: str, reproducible: str, ranks: int, expected: type[Parallel]
) -> None:
    train = TrainConfig(parallel=parallel, reproducible=reproducible)  # type: ignore[arg-type]
    assert strategy_class(train, ranks) is expected


def test_one_rank_is_not_wrapped(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        assert trainer.parallel.model is trainer.parallel.network is trainer.state.network


def test_data_parallel_without_gpus_computes_the_same_and_saves_the_same_names(tmp_path: Path) -> None:
    net, images = nn.Linear(2, 2), torch.ones(3, 2)
    with built(tmp_path, "train.parallel=dp") as trainer:
        trainer.parallel.wrap(net, torch.optim.SGD(net.parameters(), lr=0.1))
        assert isinstance(trainer.parallel.model, nn.DataParallel)
        assert list(trainer.parallel.network.state_dict()) == ["weight", "bias"]
        assert torch.equal(trainer.parallel.model(images), net(images))


class Centred(nn.Module):
    """Keeps a running mean of its inputs, in a new tensor each time."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), 3.0))
        self.register_buffer("c", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[n] to the same."""
        self.c = 0.5 * self.c + 0.5 * x.mean()
        return self.weight * (x - self.c)


@pytest.mark.parametrize("error", [None, RuntimeError("broken")], ids=["no-error", "error"])
def test_a_network_has_other_weights_only_for_a_while(tmp_path: Path, error: Exception | None) -> None:
    net = Centred()
    with built(tmp_path) as trainer:
        trainer.parallel.wrap(net, torch.optim.SGD(net.parameters(), lr=0.1))
        net(torch.full((2,), 16.0))
        with suppress(RuntimeError), trainer.parallel.replaced_weights({"weight": torch.ones(1), "c": torch.ones(1)}):
            assert [net.weight.item(), net.c.item()] == [1.0, 1.0]
            net(torch.full((2,), 16.0))
            if error is not None:
                raise error
        assert [net.weight.item(), net.c.item()] == [3.0, 8.0]


@pytest.mark.parametrize("settings", [[], ["train.ema_decay=0.9"]])
def test_a_network_whose_layout_has_versions_is_evaluated_and_goes_on(tmp_path: Path, settings: list[str]) -> None:
    settings = ["model.name=mnasnet0_5", "model.args={}", "data.image_size=32", *settings]
    with built(tmp_path, *settings, "train.max_steps=1") as trainer:
        trainer.fit()
    with built(tmp_path, *settings, "train.max_steps=2") as trainer:
        assert trainer.state.step == 1
        trainer.fit()


def to_double(network: Any) -> Any:
    network.register_forward_pre_hook(lambda _, images: tuple(each.double() for each in images))
    return network.double()


@pytest.mark.parametrize("mode", ["fast", "bitwise"])
def test_a_precision_may_train_other_weights_than_fp32(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PRECISIONS, "fp32", replace(PRECISIONS["fp32"], convert=to_double))  # type: ignore[arg-type]
    settings = (f"train.reproducible={mode}", "train.precision=fp32", "train.ema_decay=0.9", "train.clip_grad_norm=1.0")
    with built(tmp_path, *settings) as trainer:
        trainer.fit()
        weights = [parameter.dtype for parameter in trainer.state.network.parameters()]
        moments = [state["momentum_buffer"].dtype for state in trainer.parallel.optimizer.state.values()]
    assert {*weights, *moments} == {torch.float64}
    assert trainer.state.result is not None
