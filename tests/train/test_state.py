"""What a checkpoint takes from a run, and gives back."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from entrypoint import Failure
from train import state
from train.evaluation.results import EvaluationResult
from train.state import TrainState

RESULT = EvaluationResult.from_json({"accuracy": 0.5, "loss": 1.5, "samples": 8})


def fresh(name: str = "sgd", width: int = 4) -> TrainState:
    torch.manual_seed(0)
    network = nn.Linear(3, width)
    kinds: dict[str, Any] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
    options = {"momentum": 0.9} if name == "sgd" else {}
    return TrainState(network=network, optimizer=kinds[name](network.parameters(), lr=0.1, **options), scaler=None)


def trained(name: str = "sgd", steps: int = 3) -> TrainState:
    found = fresh(name)
    for _ in range(steps):
        step(found)
    found.seconds, found.evaluated, found.best_step, found.result, found.best = 7.5, 2, 1, RESULT, RESULT
    return found


def step(current: TrainState) -> None:
    torch.manual_seed(100 + current.step)
    current.network(torch.randn(5, 3)).square().mean().backward()
    current.optimizer.step()
    current.optimizer.zero_grad()
    current.step += 1


def through_a_file(current: TrainState) -> dict[str, Any]:
    """The facts as JSON brings them back."""
    return json.loads(json.dumps(current.to_json()))  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", ["sgd", "adamw"])
@pytest.mark.parametrize("fused", [True, None], ids=["to-fused", "from-fused"])
def test_a_run_goes_on_with_other_kernels_than_it_began_with(name: str, fused: bool | None) -> None:
    whole, left, resumed = trained(name, steps=4), trained(name, steps=3), fresh(name)
    left.optimizer.param_groups[0]["fused"], resumed.optimizer.param_groups[0]["fused"] = not fused, fused
    resumed.restore(left.tensors(), through_a_file(left))
    assert resumed.optimizer.param_groups[0]["fused"] is fused
    step(resumed)
    pairs = zip(whole.network.parameters(), resumed.network.parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def test_numbers_come_back_as_they_were() -> None:
    left, resumed = trained(), fresh()
    resumed.restore(left.tensors(), through_a_file(left))
    kept = ("step", "seconds", "evaluated", "best_step", "result", "best")
    assert [getattr(resumed, name) for name in kept] == [3, 7.5, 2, 1, RESULT, RESULT]


def test_a_loss_scale_comes_back() -> None:
    left, resumed = fresh(), fresh()
    left.scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    resumed.scaler = torch.amp.GradScaler("cpu")
    left.scaler.scale(torch.ones(1))  # the scale is made at its first use
    resumed.restore(left.tensors(), through_a_file(left))
    assert resumed.scaler.get_scale() == 512.0


@pytest.mark.parametrize("missing", ["step", "optimizer", "best"])
def test_a_checkpoint_without_a_fact_is_refused(missing: str) -> None:
    told = through_a_file(trained())
    del told[missing]
    with pytest.raises(Failure, match="does not fit") as caught:
        fresh().restore(trained().tensors(), told)
    assert caught.value.code == 65


def test_a_checkpoint_of_another_model_is_refused() -> None:
    with pytest.raises(Failure, match="does not fit this model"):
        fresh(width=5).restore(trained().tensors(), through_a_file(trained()))


def test_a_checkpoint_whose_optimizer_has_other_groups_is_refused_with_their_sizes() -> None:
    """A version that gave weight decay to other parameters would continue with the moments of others."""
    left, resumed = trained(), fresh()
    weight, bias = resumed.network.parameters()
    resumed.optimizer = torch.optim.SGD([{"params": [weight]}, {"params": [bias], "weight_decay": 0.0}], lr=0.1)
    with pytest.raises(Failure, match="does not fit this model and optimizer") as caught:
        resumed.restore(left.tensors(), through_a_file(left))
    assert "groups of [2] parameters" in (caught.value.found or "")
    assert "[1, 1]" in (caught.value.found or "")


def test_sums_that_were_begun_go_on_on_their_rank_or_all_on_rank_0() -> None:
    window = state.LogWindow(sums=[[1.0, 2.0, 3.0], [10.0, 20.0, 30.0]], since=5.0)
    assert [window.sums_of(rank, 2) for rank in range(2)] == window.sums
    assert [window.sums_of(rank, 3) for rank in range(3)] == [[11.0, 22.0, 33.0], [0.0] * 3, [0.0] * 3]
