"""What a checkpoint takes from a run, and gives back."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from entrypoint import Failure
from train import state
from train.evaluation.results import EvaluationResult
from train.parallel.base import Parallel
from train.state import TrainState

RESULT = EvaluationResult.from_json({"accuracy": 0.5, "loss": 1.5, "samples": 8})


class Unwrapped(Parallel):
    """A strategy with a network and an optimizer as they are, and without a runtime."""

    def __init__(
        self, network: nn.Module, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler | None
    ) -> None:
        self.network, self.optimizer = network, optimizer
        self._accelerator = SimpleNamespace(scaler=scaler)  # type: ignore[assignment]


def fresh(name: str = "sgd", width: int = 4, scaler: torch.amp.GradScaler | None = None) -> TrainState:
    torch.manual_seed(0)
    network = nn.Linear(3, width)
    kinds: dict[str, Any] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    options = {"momentum": 0.9} if name == "sgd" else {}
    return TrainState(parallel=Unwrapped(network, kinds[name](network.parameters(), lr=0.1, **options), scaler))


def trained(name: str = "sgd", steps: int = 3) -> TrainState:
    found = fresh(name)
    for _ in range(steps):
        step(found)
    found.seconds, found.evaluated, found.best_step, found.result, found.best = 7.5, 2, 1, RESULT, RESULT
    return found


def step(current: TrainState) -> None:
    torch.manual_seed(100 + current.step)
    current.network(torch.randn(5, 3)).square().mean().backward()
    current.parallel.optimizer.step()
    current.parallel.optimizer.zero_grad()
    current.step += 1


def through_a_file(current: TrainState) -> tuple[Any, dict[str, Any]]:
    """The tensors, and the facts as JSON brings them back."""
    tensors, values = current.snapshot()
    return tensors, json.loads(json.dumps(values))


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("fused", [True, None], ids=["to-fused", "from-fused"])
def test_a_run_goes_on_with_other_kernels_than_it_began_with(name: str, fused: bool | None) -> None:
    whole, left, resumed = trained(name, steps=4), trained(name, steps=3), fresh(name)
    left.parallel.optimizer.param_groups[0]["fused"], resumed.parallel.optimizer.param_groups[0]["fused"] = (
        not fused,
        fused,
    )
    resumed.restore(*through_a_file(left))
    assert resumed.parallel.optimizer.param_groups[0]["fused"] is fused
    step(resumed)
    pairs = zip(whole.network.parameters(), resumed.network.parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def test_numbers_come_back_as_they_were() -> None:
    left, resumed = trained(), fresh()
    resumed.restore(*through_a_file(left))
    kept = ("step", "seconds", "evaluated", "best_step", "result", "best")
    assert [getattr(resumed, name) for name in kept] == [3, 7.5, 2, 1, RESULT, RESULT]


def test_a_loss_scale_comes_back() -> None:
    scaler, resumed_scaler = torch.amp.GradScaler("cpu", init_scale=512.0), torch.amp.GradScaler("cpu")
    left, resumed = fresh(scaler=scaler), fresh(scaler=resumed_scaler)
    scaler.scale(torch.ones(1))  # the scale is made at its first use
    resumed.restore(*through_a_file(left))
    assert resumed_scaler.get_scale() == 512.0


@pytest.mark.parametrize("missing", ["step", "optimizer", "best"])
def test_a_checkpoint_without_a_fact_is_refused(missing: str) -> None:
    tensors, values = through_a_file(trained())
    del values[missing]
    with pytest.raises(Failure, match="does not fit") as caught:
        fresh().restore(tensors, values)
    assert caught.value.code == 65


def test_a_checkpoint_of_another_model_is_refused() -> None:
    with pytest.raises(Failure, match="does not fit this model"):
        fresh(width=5).restore(*through_a_file(trained()))


def test_a_checkpoint_whose_optimizer_has_other_groups_is_refused_with_their_sizes() -> None:
    """A version that gave weight decay to other parameters would continue with the moments of others."""
    left, resumed = trained(), fresh()
    weight, bias = resumed.network.parameters()
    resumed.parallel.optimizer = torch.optim.SGD(
        [{"params": [weight]}, {"params": [bias], "weight_decay": 0.0}], lr=0.1
    )
    with pytest.raises(Failure, match="does not fit this model and optimizer") as caught:
        resumed.restore(*through_a_file(left))
    assert "groups of [2] parameters" in (caught.value.found or "")
    assert "[1, 1]" in (caught.value.found or "")


def test_sums_that_were_begun_go_on_on_their_rank_or_all_on_rank_0() -> None:
    window = state.LogWindow(sums=[[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]], since=5.0)
    assert [window.sums_of(rank, 2) for rank in range(2)] == window.sums
    assert [window.sums_of(rank, 3) for rank in range(3)] == [[11.0, 22.0, 33.0], [0.0] * 3, [0.0] * 3]
