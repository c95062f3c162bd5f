"""What a checkpoint takes from a run and gives back, and which numbers in it no training tells."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from jobs import built, trained
from torch import nn

from entrypoint import Failure
from train import state
from train.evaluation.results import EvaluationResult
from train.fields import check_fields
from train.parallel.base import Parallel
from train.state import STATE_RULES, LogWindow, TrainState

RESULT = EvaluationResult.from_json({"accuracy": 0.5, "loss": 1.5, "samples": 8})
WITHOUT_LOSS = {"accuracy": 0.5, "loss": float("nan"), "samples": 8, "recall": [0.5, None]}
ODD = [
    ("step", -1),
    ("step", 10**400),
    ("step", True),
    ("evaluated", "3"),
    ("best_step", 2.5),
    ("held", None),
    ("seconds", float("inf")),
    ("seconds", -1.0),
    ("result", {"accuracy": "x"}),
    ("result", [1]),
    ("best", {"recall": "x"}),
    ("best", {"recall": [{}]}),
    ("window", []),
    ("window", {"sums": [], "since": 0.0}),
    ("window", {"sums": [[1, 2, 3], [1, 2]], "since": 0.0}),
    ("window", {"sums": [["1", 2, 3]], "since": 0.0}),
    ("window", {"sums": [[1, 2, 3]], "since": None}),
]


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


def trained_state(name: str = "sgd", steps: int = 3) -> TrainState:
    current = fresh(name)
    for _ in range(steps):
        step(current)
    current.seconds, current.evaluated, current.best_step, current.result, current.best = 7.5, 2, 1, RESULT, RESULT
    return current


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
    uninterrupted, left, resumed = trained_state(name, steps=4), trained_state(name, steps=3), fresh(name)
    left.parallel.optimizer.param_groups[0]["fused"], resumed.parallel.optimizer.param_groups[0]["fused"] = (
        not fused,
        fused,
    )
    resumed.restore(*through_a_file(left))
    assert resumed.parallel.optimizer.param_groups[0]["fused"] is fused
    step(resumed)
    pairs = zip(uninterrupted.network.parameters(), resumed.network.parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def test_numbers_come_back_as_they_were() -> None:
    left, resumed = trained_state(), fresh()
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
    tensors, values = through_a_file(trained_state())
    del values[missing]
    with pytest.raises(Failure, match="does not fit") as caught:
        fresh().restore(tensors, values)
    assert caught.value.code == 65


def test_a_checkpoint_of_another_model_is_refused() -> None:
    with pytest.raises(Failure, match="does not fit this model"):
        fresh(width=5).restore(*through_a_file(trained_state()))


def test_a_checkpoint_whose_optimizer_has_other_groups_is_refused_with_their_sizes() -> None:
    """A version that gave weight decay to other parameters would continue with the moments of others."""
    left, resumed = trained_state(), fresh()
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


STORED: dict[str, Any] = {
    "step": 3,
    "seconds": 1.5,
    "evaluated": 2,
    "best_step": None,
    "held": 0,
    "rollbacks": 0,
    "result": WITHOUT_LOSS,
    "best": None,
    "window": {"sums": [[1.0, 2, 3.0]], "since": 0.5},
}


def test_what_a_training_tells_passes() -> None:
    check_fields(STORED, STATE_RULES, optional=True)
    early = {name: value for name, value in STORED.items() if name not in ("held", "rollbacks", "window")}
    check_fields(early, STATE_RULES, optional=True)


@pytest.mark.parametrize(("name", "value"), ODD)
def test_what_no_training_tells_is_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name} is "):
        check_fields(STORED | {name: value}, STATE_RULES, optional=True)


def test_a_new_run_has_saved_nothing(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        trainer.clock = lambda: 7.0
        trainer.begin()
        loop, checkpointer = trainer.loop, trainer.checkpointer
    assert (loop.finished_epoch, loop.skipped_steps) == (None, 0)
    assert (checkpointer.newest, checkpointer.saved_at) == (None, 7.0)


def test_a_resumed_run_counts_on_and_knows_its_checkpoint(tmp_path: Path) -> None:
    trained(tmp_path)
    with built(tmp_path) as trainer:
        trainer.clock = lambda: 7.0
        trainer.begin()
        loop = trainer.loop
    assert trainer.checkpointer.newest == tmp_path / "checkpoints" / "step-00000008"
    assert loop.stopwatch.seconds == trainer.state.seconds > 0


def test_an_epoch_goes_on_from_the_losses_that_an_earlier_start_has_added_up(tmp_path: Path) -> None:
    with built(tmp_path) as trainer:
        trainer.state.step, batch = 4, trainer.batches.global_
        trainer.state.window = LogWindow(sums=[[3.0 * batch, 0.0, batch], [5.0 * batch, 0.0, batch]], since=0.0)
        trainer.clock = lambda: 7.0
        trainer.begin()
        loop = trainer.loop
    loop.epoch_stats.read(6, 6.5, 4 * batch)  # steps 3 to 6: 3 and 5, 8 and 10
    assert loop.epoch_stats.close(6, 8.0, epoch=4).loss == 9.0
