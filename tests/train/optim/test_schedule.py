"""The learning rate is a function of the step, and one that does not fit the weights or the task is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entrypoint import Failure
from train.config import load, resolved, schema
from train.config.batches import StepCounts
from train.config.schema import OptimConfig
from train.optim import schedule
from train.optim.schedule import Schedule

COSINE = Schedule(name="cosine", peak=0.1, warmup=4, total=20, args={"end": 0.0})


def build_schedule(per_epoch: int = 10, total: int = 100, **changes: Any) -> Schedule:
    optim = replace(OptimConfig(lr=0.1, warmup_epochs=0), **changes)
    return schedule.build_schedule(optim, StepCounts(per_epoch=per_epoch, total=total, dropped=0), 1024)


def test_warm_up_is_linear_and_its_first_step_moves() -> None:
    assert [COSINE(step) for step in range(5)] == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1])


def test_cosine_falls_from_the_peak_and_its_last_step_still_moves() -> None:
    rates = [COSINE(step) for step in range(4, 20)]
    assert rates == sorted(rates, reverse=True)
    assert 0 < rates[-1] < 0.01 * COSINE.peak * 2


def test_halfway_through_the_cosine_the_rate_is_half() -> None:
    assert COSINE(12) == pytest.approx(0.05)


def test_constant_stays_at_the_peak() -> None:
    flat = build_schedule(schedule="constant")
    assert {flat(step) for step in range(100)} == {0.1}


def test_linear_falls_by_the_same_amount_in_every_step() -> None:
    line = build_schedule(total=10, schedule="linear")
    assert [line(step) for step in range(10)] == pytest.approx([0.1 * (10 - step) / 10 for step in range(10)])


@pytest.mark.parametrize("kind", ["cosine", "linear"])
def test_a_curve_may_end_above_zero(kind: str) -> None:
    curve = build_schedule(schedule=kind, schedule_args={"end": 0.5})
    assert [curve(0), curve(100)] == pytest.approx([0.1, 0.05])


def test_steps_fall_after_the_epochs_that_are_named() -> None:
    stairs = build_schedule(schedule="step", schedule_args={"at_epochs": [3, 6], "factor": 0.5})
    assert [stairs(step) for step in (29, 30, 59, 60)] == pytest.approx([0.1, 0.05, 0.05, 0.025])


def test_steps_fall_at_half_and_three_quarters_where_nothing_is_named() -> None:
    assert build_schedule(schedule="step").falls == (50, 75)


@pytest.mark.parametrize(("warmup", "total"), [(30, 100), (5, 20), (250, 1000)])
def test_one_cycle_is_torchs(warmup: int, total: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    reference = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=total, pct_start=warmup / total)
    curve = build_schedule(per_epoch=1, total=total, warmup_epochs=warmup, schedule="one_cycle")
    for step in range(total):
        assert curve(step) == pytest.approx(reference.get_last_lr()[0], rel=1e-6), step
        optimizer.step()
        if step + 1 < total:
            reference.step()


@pytest.mark.parametrize("kind", schema.SCHEDULES)
@pytest.mark.parametrize("warmup", [0, 1])
def test_the_only_step_of_a_run_has_the_peak(kind: str, warmup: int) -> None:
    falls = {"schedule_args": {"at_epochs": [1]}} if kind == "step" else {}
    curve = build_schedule(schedule=kind, per_epoch=1, total=1, warmup_epochs=warmup, **falls)
    assert curve(0) == curve.peak


@pytest.mark.parametrize("kind", schema.SCHEDULES)
def test_the_rate_depends_on_the_step_alone(kind: str) -> None:
    curve = build_schedule(schedule=kind, warmup_epochs=1)
    assert [curve(step) for step in (57, 3, 57)] == [curve(57), curve(3), curve(57)]


@pytest.mark.parametrize("kind", schema.SCHEDULES)
@given(st.floats(0, 100), st.integers(1, 50), st.integers(1, 500))
def test_every_step_has_a_rate_above_zero_and_up_to_the_peak(
    kind: str, epochs: float, per_epoch: int, total: int
) -> None:
    curve = build_schedule(per_epoch, total, schedule=kind, warmup_epochs=epochs)
    assert curve.warmup <= total
    assert all(0 < curve(step) <= curve.peak * (1 + 1e-12) for step in range(total))


@pytest.mark.parametrize(("scaling", "expected"), [("none", 0.1), ("linear", 0.4), ("sqrt", 0.2)])
def test_the_peak_follows_the_global_batch_as_asked(scaling: str, expected: float) -> None:
    assert build_schedule(lr_scaling=scaling, base_batch_size=256).peak == pytest.approx(expected)


WORDS = {
    "constant": ({"schedule": "constant"}, "0.1, then constant"),
    "cosine": ({"warmup_epochs": 1}, "0.1 after 10 steps of warmup, then cosine to 0"),
    "linear": ({"schedule": "linear", "schedule_args": {"end": 0.1}}, "0.1, then linear to 0.01"),
    "step": ({"schedule": "step"}, "0.1, then times 0.1 after step 50, 75"),
    "one_cycle": ({"schedule": "one_cycle", "warmup_epochs": 3}, "0.1 after 30 steps of warmup, then cosine to 4e-07"),
}


@pytest.mark.parametrize(("changes", "text"), WORDS.values(), ids=WORDS.keys())
def test_a_schedule_is_told_in_words(changes: dict[str, Any], text: str) -> None:
    assert schedule.describe_schedule(build_schedule(**changes)) == text


UNFIT_ARGUMENTS = {
    "unknown": ("cosine", {"gamma": 0.1}, "unknown: gamma"),
    "of-another-kind": ("linear", {"factor": 0.1}, "unknown: factor"),
    "nothing-to-set": ("constant", {"end": 0.1}, "unknown: end"),
    "above-the-peak": ("cosine", {"end": 1.5}, "end: 1.5"),
    "negative": ("linear", {"end": -0.1}, "end: -0.1"),
    "text": ("cosine", {"end": "low"}, "end: low"),
    "a-bool": ("cosine", {"end": True}, "end: True"),
    "null": ("cosine", {"end": None}, "end: None"),
    "factor-zero": ("step", {"factor": 0}, "factor: 0"),
    "a-factor-without-end": ("step", {"factor": 1e300}, "factor: 1e+300"),
    "no-list": ("step", {"at_epochs": 3}, "at_epochs: 3"),
    "empty-list": ("step", {"at_epochs": []}, "at_epochs: []"),
    "an-epoch-before-the-first": ("step", {"at_epochs": [-1, 3]}, "at_epochs: [-1, 3]"),
    "an-epoch-in-words": ("step", {"at_epochs": ["three"]}, "at_epochs: ['three']"),
    "start-above-the-peak": ("one_cycle", {"start": 2}, "start: 2"),
}


@pytest.mark.parametrize(("kind", "args", "named"), UNFIT_ARGUMENTS.values(), ids=UNFIT_ARGUMENTS.keys())
def test_arguments_that_do_not_fit_are_refused(kind: str, args: dict[str, Any], named: str) -> None:
    with pytest.raises(Failure, match=rf"optim\.schedule_args do not fit {kind}") as caught:
        schedule.schedule_arguments(OptimConfig(schedule=kind, schedule_args=args))
    assert caught.value.code == 64
    assert named in str(caught.value)


def test_a_misspelled_argument_is_answered_with_the_nearest_one() -> None:
    with pytest.raises(Failure, match=r"optim\.schedule_args do not fit step") as caught:
        schedule.schedule_arguments(OptimConfig(schedule="step", schedule_args={"factors": 0.1}))
    assert caught.value.fix == "write optim.schedule_args.factor instead of optim.schedule_args.factors"


@pytest.mark.parametrize(
    ("settings", "task", "warns"),
    [
        (("optim.lr=0.1",), "regression", True),
        (("optim.lr=0.0125", "optim.lr_scaling=linear", "train.global_batch_size=2048"), "regression", True),
        ((), "regression", False),
        (("train.global_batch_size=8192",), "regression", False),
        (("optim.lr=0.01",), "regression", False),
        (("optim.name=adamw", "optim.lr=auto"), "regression", False),
        (("optim.lr=0.1",), "classification", False),
    ],
    ids=str,
)
def test_a_rate_of_sgd_for_classes_is_named_where_numbers_are_predicted(
    settings: tuple[str, ...], task: str, warns: bool
) -> None:
    asked = load.load_config(None, [*settings])
    chosen = resolved.resolve(asked, asked, task).requested
    warnings = schedule.regression_warnings(chosen, task)
    assert (len(warnings) == 1 and "fix: optim.lr=auto" in warnings[0]) is warns


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["model.weights=w.pth", "optim.lr=0.1"], ["optim.lr: 0.1 is a learning rate for random weights"]),
        (["model.weights=w.pth", "optim.name=adamw", "optim.lr=1e-3"], ["a tenth (0.0001 for a global batch of 256)"]),
        (["model.weights=w.pth", "optim.lr=0.01"], []),
        (["model.weights=w.pth"], []),
        (["optim.lr=0.5"], []),
        (["model.freeze=backbone"], ["freezes random weights"]),
        (["model.freeze=backbone", "model.name=mine:make"], []),
    ],
    ids=str,
)
def test_rates_and_frozen_layers_that_do_not_go_with_the_weights_are_said(
    settings: list[str], words: list[str]
) -> None:
    warnings = schedule.fine_tuning_warnings(load.load_config(None, settings))
    assert len(warnings) == len(words)
    assert all(word in warning for word, warning in zip(words, warnings, strict=True))
