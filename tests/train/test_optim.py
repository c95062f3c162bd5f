"""Optimizers, and learning rates as functions of the step."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entrypoint import Failure
from train import optim
from train.config import Optim

PARAMETERS = [torch.nn.Parameter(torch.ones(3))]
COSINE = optim.Schedule(kind="cosine", peak=0.1, warmup=4, total=20)


def test_warm_up_is_linear_and_its_first_step_moves() -> None:
    assert [COSINE(step) for step in range(5)] == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1])


def test_cosine_falls_from_the_peak_and_its_last_step_still_moves() -> None:
    rates = [COSINE(step) for step in range(4, 20)]
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 0.01 * COSINE.peak * 2


def test_halfway_through_the_cosine_the_rate_is_half() -> None:
    assert COSINE(12) == pytest.approx(0.05)


def test_constant_stays_at_the_peak() -> None:
    flat = replace(COSINE, kind="constant")
    assert {flat(step) for step in range(4, 20)} == {0.1}


def test_the_rate_depends_on_the_step_alone() -> None:
    assert [COSINE(step) for step in (7, 3, 7)] == [COSINE(7), COSINE(3), COSINE(7)]


@given(st.floats(0, 100), st.integers(1, 50), st.integers(1, 500))
def test_warm_up_never_takes_more_than_the_run(epochs: float, per_epoch: int, total: int) -> None:
    found = optim.schedule(replace(Optim(), warmup_epochs=epochs), per_epoch=per_epoch, total=total)
    assert found.warmup <= total
    assert all(0 < found(step) <= found.peak * (1 + 1e-12) for step in range(total))


def test_sgd_is_set_as_the_config_says() -> None:
    made = optim.build(Optim(lr=0.3, momentum=0.8, weight_decay=0.01, args={"nesterov": True}), PARAMETERS)
    group = made.param_groups[0]
    assert isinstance(made, torch.optim.SGD)
    assert [group[key] for key in ("lr", "momentum", "weight_decay", "nesterov")] == [0.3, 0.8, 0.01, True]


def test_adamw_takes_betas_as_yaml_writes_them() -> None:
    made = optim.build(Optim(name="adamw", lr=0.001, args={"betas": [0.8, 0.95]}), PARAMETERS)
    assert isinstance(made, torch.optim.AdamW)
    assert made.param_groups[0]["betas"] == (0.8, 0.95)


def test_a_rate_is_set_in_every_group() -> None:
    made = optim.build(Optim(), PARAMETERS)
    optim.set_rate(made, 0.7)
    assert {group["lr"] for group in made.param_groups} == {0.7}


@pytest.mark.parametrize(
    ("args", "named"),
    [({"nestrov": True}, "nestrov"), ({"lr": 1.0}, "lr"), ({"nesterov": True, "dampening": 0.5}, "dampening")],
    ids=["unknown", "ours", "refused-by-torch"],
)
def test_arguments_that_do_not_fit_are_refused_by_name(args: dict[str, object], named: str) -> None:
    with pytest.raises(Failure, match=r"optim\.args do not fit sgd") as caught:
        optim.build(Optim(args=args), PARAMETERS)
    assert caught.value.code == 64
    assert named in str(caught.value)
