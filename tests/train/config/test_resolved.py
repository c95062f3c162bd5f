"""`optim.lr: auto` is the optimizer's usual rate, and a tenth of it for trained weights or for numbers."""

from __future__ import annotations

import pytest

from entrypoint import Failure
from train.config import load, resolved
from train.config.schema import RunConfig
from train.optim import schedule


def config(*settings: str) -> RunConfig:
    return load.load_config(None, [*settings])


@pytest.mark.parametrize(
    ("settings", "peak"),
    [
        ((), 0.1),
        (("model.weights=w.pth",), 0.01),
        (("optim.name=adamw",), 1e-3),
        (("optim.name=adamw", "model.weights=w.pth"), 1e-4),
        (("optim.name=AdamW",), 1e-3),
        (("train.global_batch_size=1024",), 0.4),
        (("optim.name=adamw", "train.global_batch_size=1024"), 2e-3),
        (("optim.name=adamw", "train.global_batch_size=1024", "optim.lr_scaling=linear"), 4e-3),
    ],
    ids=str,
)
def test_auto_is_the_usual_rate_of_the_optimizer(settings: tuple[str, ...], peak: float) -> None:
    chosen = config(*settings)
    optim = resolved.resolve_learning_rate(chosen)
    assert schedule.peak_learning_rate(optim, chosen.train.global_batch_size) == pytest.approx(peak)
    assert (optim.lr, optim.lr_scaling) == (pytest.approx(peak), "none")  # what a run records is what it trains with


@pytest.mark.parametrize(
    ("settings", "peak"),
    [
        ((), 0.01),
        (("model.weights=w.pth",), 0.01),
        (("train.global_batch_size=32",), 0.00125),
        (("optim.name=SGD",), 0.01),
        (("optim.name=adamw",), 1e-3),
        (("optim.name=adamw", "model.weights=w.pth"), 1e-4),
    ],
    ids=str,
)
def test_numbers_take_a_tenth_with_sgd(settings: tuple[str, ...], peak: float) -> None:
    assert resolved.resolve_learning_rate(config(*settings), "regression").lr == pytest.approx(peak)
    labels = resolved.resolve_learning_rate(config(*settings), "multi_label")
    assert labels == resolved.resolve_learning_rate(config(*settings))


def test_the_quickstart_trains_with_the_bits_of_the_former_default() -> None:
    assert resolved.resolve_learning_rate(RunConfig()).lr == 0.1


def test_a_number_stays_as_it_is() -> None:
    chosen = load.load_config(None, ["optim.lr=0.3", "model.weights=w.pth"])
    assert resolved.resolve_learning_rate(chosen, "regression") is chosen.optim


@pytest.mark.parametrize("name", ["Rprop", "ASGD", "mine:Optimizer"])
def test_an_optimizer_without_a_usual_rate_needs_a_number(name: str) -> None:
    with pytest.raises(Failure, match=f"no rate for optim.name {name}") as caught:
        resolved.resolve_learning_rate(config(f"optim.name={name}"))
    assert caught.value.code == 64
    assert "optim.lr=0.1" in caught.value.fix  # a run that was begun with the former default goes on
