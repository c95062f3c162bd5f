"""Numbers that no training tells are refused by name, and a training's own pass."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from train import state

RESULT = {"accuracy": 0.5, "loss": float("nan"), "samples": 8, "recall": [0.5, None]}
TOLD: dict[str, Any] = {
    "step": 3,
    "seconds": 1.5,
    "evaluated": 2,
    "best_step": None,
    "held": 0,
    "rollbacks": 0,
    "result": RESULT,
    "best": None,
    "window": {"sums": [[1.0, 2, 3.0]], "since": 0.5},
}
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


def stepped(kind: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    net = nn.Linear(3, 2)
    made = kind(net.parameters(), lr=0.1)  # type: ignore[call-arg]
    net(torch.ones(1, 3)).sum().backward()
    made.step()
    return made


def settings_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [dict(group) for group in optimizer.param_groups]


def test_what_a_training_tells_passes() -> None:
    state.check_values(TOLD)
    state.check_values({name: value for name, value in TOLD.items() if name not in ("held", "rollbacks", "window")})


@pytest.mark.parametrize(("name", "value"), ODD)
def test_what_no_training_tells_is_named(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name} is "):
        state.check_values(TOLD | {name: value})


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop])
def test_an_optimizer_s_own_settings_pass(kind: type[torch.optim.Optimizer]) -> None:
    made = stepped(kind)
    state.check_optimizer(made, settings_of(made))


@pytest.mark.parametrize("change", [{"lr": [1]}, {"betas": (0.9,)}, {"eps": "x"}, {"foreach": {}}, {"betas": 0.9}])
def test_settings_of_another_kind_are_refused(change: dict[str, Any]) -> None:
    made = stepped(torch.optim.AdamW)
    before = settings_of(made)
    made.param_groups[0].update(change)
    with pytest.raises(ValueError, match=f"^optimizer {next(iter(change))} is "):
        state.check_optimizer(made, before)


def test_a_setting_that_is_missing_is_refused() -> None:
    made = stepped(torch.optim.AdamW)
    before = settings_of(made)
    del made.param_groups[0]["lr"]
    with pytest.raises(ValueError, match=r"^optimizer lr is None"):
        state.check_optimizer(made, before)


@pytest.mark.parametrize("moments", [7, {"exp_avg": "x"}, {"exp_avg": {}}, [1]])
def test_moments_that_are_none_are_refused(moments: object) -> None:
    made = stepped(torch.optim.AdamW)
    made.state[made.param_groups[0]["params"][0]] = moments
    with pytest.raises(ValueError, match=r"^optimizer "):
        state.check_optimizer(made, settings_of(made))
